"""The seam: what passes through it, and what a hook sees."""

from typing import Any

import pytest
import torch

from qkv.errors import ConfigError
from qkv.functional import attention
from qkv.masks.patterns import causal
from qkv.nn.attention import Attention
from qkv.normalizers.sparse import Sparsemax
from qkv.scores.products import Dot


def test_the_seam_changes_no_bit_of_the_function() -> None:
    query, key, value = torch.randn(3, 2, 4, 6, 8).unbind()
    seam = Attention(normalizer=Sparsemax())
    expected = attention(query, key, value, score=Dot(), normalizer=Sparsemax(), mask=causal())
    assert torch.equal(seam(query, key, value, score=Dot(), mask=causal()), expected)


def test_a_hook_sees_query_key_value_and_options() -> None:
    seen: list[tuple[Any, ...]] = []
    seam = Attention()
    seam.register_forward_hook(lambda module, given, options, output: seen.append((given, options)), with_kwargs=True)
    query, key, value = torch.randn(3, 2, 6, 8).unbind()
    mask = causal()
    seam(query, key, value, mask=mask, score=Dot())
    ((given, options),) = seen
    assert given[0] is query
    assert given[1] is key
    assert given[2] is value
    assert options == {"mask": mask, "score": Dot()}


def test_the_seam_owns_no_parameters() -> None:
    assert not list(Attention(dropout=0.5).state_dict())


def test_weights_are_dropped_in_training_only() -> None:
    query, key = torch.randn(2, 64, 8).unbind()
    seam, value = Attention(dropout=0.5), torch.ones(64, 1)
    assert (seam(query, key, value) - 1).abs().max() > 0.01
    assert torch.allclose(seam.eval()(query, key, value), torch.ones(64, 1))


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_a_dropout_outside_its_range_is_named(share: float) -> None:
    with pytest.raises(ConfigError, match=r"dropout: expected a fraction in \[0, 1\)"):
        Attention(dropout=share)
