"""Backend `flex`: refuses with a reason where it would be slow, and is imported only where it is used."""

import subprocess
import sys
from functools import partial
from typing import Any

import pytest
import torch

import qkv
from qkv.algorithms.sdpa import flex
from qkv.engine.describe import Arguments, describe
from qkv.errors import UnsupportedError


def test_it_refuses_off_the_gpu() -> None:
    query, key, value = torch.randn(3, 4, 8).unbind()
    with pytest.raises(UnsupportedError, match="on a GPU only"):
        qkv.attention(query, key, value, backend="flex")


@pytest.mark.filterwarnings("ignore:.*flex_attention")
@pytest.mark.parametrize(
    "options",
    [
        {"mask": qkv.masks.causal(), "bias": qkv.biases.alibi(torch.tensor([0.5, 0.1]))},
        {"mask": qkv.masks.lengths(torch.tensor([5, 3])), "bias": qkv.biases.relative(torch.randn(2, 9))},
        {"mask": qkv.masks.documents(torch.tensor([0, 0, 1, 1, 1, 2]), torch.tensor([0, 1, 1, 2, 0, 0, 3]))},
        {"mask": torch.rand(2, 1, 6, 7) < 0.7, "score": qkv.scores.ScaledDot(softcap=1.5)},
        {"mask": qkv.masks.window(2, 1), "bias": torch.randn(2, 1, 7)},
        {"mask": qkv.masks.window(1, 0) | qkv.masks.lengths(2)},
    ],
)
def test_biases_and_tables_are_those_of_the_equation(options: dict[str, Any]) -> None:
    x = [torch.randn(2, 2, *shape) for shape in ((6, 16), (7, 16), (7, 16))]
    given = {"score": qkv.scores.ScaledDot(), "mask": None, "bias": None, **options}
    arguments = Arguments(given["score"], None, given["mask"], given["bias"], 0.0, None, False)
    problem, call, _ = describe(*x, arguments)
    compiled = problem._replace(device="cuda", mode="compiled")
    assert flex.refuses(compiled) is None
    output = flex.run(compiled, call.without_hidden_keys()).output
    torch.testing.assert_close(output, qkv.attention(*x, **options, backend="reference"), atol=1e-5, rtol=1e-5)


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
