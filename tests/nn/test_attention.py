"""The seam: what passes through it, and what a hook sees."""

from typing import Any

import pytest
import torch

from qkv.errors import ConfigError
from qkv.functional import attention, attention_with_weights
from qkv.masks.patterns import causal
from qkv.nn.attention import Attention
from qkv.nn.distance_scores import KernelScore
from qkv.nn.normalizers import LearnedEntmax, LearnedSigmoid, SinkSoftmax
from qkv.nn.scores import CosineScore
from qkv.normalizers.sparse import Sparsemax
from qkv.recording.recorder import record
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


@pytest.mark.parametrize(
    "settings",
    [
        {"normalizer": SinkSoftmax()},
        {"normalizer": LearnedEntmax()},
        {"normalizer": LearnedSigmoid(6)},
        {"score": CosineScore()},
        {"score": KernelScore("gaussian"), "normalizer": LearnedEntmax()},
    ],
    ids=str,
)
def test_a_learned_default_is_a_part_that_learns(settings: dict[str, Any]) -> None:
    """Its value is built in each call: neither steps of an optimizer nor a second backward pass find an old one."""
    query, key, value = torch.randn(3, 2, 6, 8).unbind()
    seam = Attention(**settings)
    assert set(seam.parameters()) == {each for part in settings.values() for each in part.parameters()}
    for _ in range(2):
        output = seam(query, key, value)
        now = {name: part.value() for name, part in settings.items()}
        assert torch.equal(output, attention(query, key, value, **now))
        torch.autograd.backward(output.square().sum())
        with torch.no_grad(), record(seam) as trace:
            seam(query, key, value)
        torch.testing.assert_close(trace.weights(""), attention_with_weights(query, key, value, **now)[1])
        for parameter in seam.parameters():
            assert parameter.grad is not None
            assert parameter.grad.any()
            with torch.no_grad():
                parameter.add_(0.5)


def test_weights_are_dropped_in_training_only() -> None:
    query, key = torch.randn(2, 64, 8).unbind()
    seam, value = Attention(dropout=0.5), torch.ones(64, 1)
    assert (seam(query, key, value) - 1).abs().max() > 0.01
    assert torch.allclose(seam.eval()(query, key, value), torch.ones(64, 1))


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_a_dropout_outside_its_range_is_named(share: float) -> None:
    with pytest.raises(ConfigError, match=r"dropout: expected a fraction in \[0, 1\)"):
        Attention(dropout=share)
