"""Backend `flex`: refuses with a reason where it would be slow, and is imported only where it is used."""

import subprocess
import sys
from functools import partial

import pytest
import torch

import qkv
from qkv.errors import UnsupportedError


def test_it_refuses_off_the_gpu() -> None:
    query, key, value = torch.randn(3, 4, 8).unbind()
    with pytest.raises(UnsupportedError, match="on a GPU only"):
        qkv.attention(query, key, value, backend="flex")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_it_gives_what_the_reference_gives() -> None:
    score = qkv.scores.ScaledDot(softcap=5.0)
    inputs = torch.randn(3, 2, 4, 256, 64, device="cuda").unbind()
    with pytest.raises(UnsupportedError, match="uncompiled"):
        qkv.attention(*inputs, backend="flex")
    for mask in (None, qkv.masks.causal(), qkv.masks.lengths(100), qkv.masks.window(20, 3)):
        options = {"score": score, "mask": mask}
        compiled = torch.compile(partial(qkv.attention, **options, backend="flex"), fullgraph=True)
        expected = qkv.attention(*inputs, **options, backend="reference")
        torch.testing.assert_close(compiled(*inputs), expected, atol=1e-3, rtol=1e-3, msg=str(mask))


@pytest.mark.slow
def test_nothing_of_it_is_imported_before_it_is_used() -> None:
    code = "import sys, qkv.functional; assert 'torch.nn.attention.flex_attention' not in sys.modules"
    bare = "import sys, torch; sys.exit('torch.nn.attention.flex_attention' in sys.modules)"
    if subprocess.run([sys.executable, "-c", bare], check=False).returncode:
        pytest.skip("PyTorch itself imports it")
    subprocess.run([sys.executable, "-c", code], check=True)
