"""User-defined score, normalizer, mask and bias: short and long, trained, inspected, never mistaken for built-ins."""

import pytest
import torch
from torch import Tensor, nn

import qkv
from qkv.biases import Bias
from qkv.errors import ConfigError, MaskError, ShapeError, UnsupportedError
from qkv.masks import Mask
from qkv.masks.base import Grid
from qkv.nn import AdditiveScore, AlibiBias, Attention, LearnedEntmax, MultiHeadAttention
from qkv.normalizers import Normalizer

SHORT, LONG = 12, 530  # 530 × 530 pairs are more than `auto` stores at once


class Softmax(Normalizer):
    """Squares instead of exponentials, under a name that is already in use."""

    def __init__(self, ease: Tensor | float = 1.0) -> None:
        self.ease = ease

    def __call__(self, scores: Tensor, visible: Tensor | None = None) -> Tensor:
        w = scores.relu() ** 2
        w = w if visible is None else w * visible
        return w / (w.sum(-1, keepdim=True) + self.ease)


class Checkered(Mask):
    """Every second key."""

    def visible(self, grid: Grid, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        return (rows_Q1 + columns_K) % 2 == 0


class Blocks(Bias):
    """A learned number for pairs in one block of five: not a function of j − i."""

    def __init__(self, bonus: Tensor) -> None:
        self.bonus = bonus

    def tile(self, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        return self.bonus * (rows_Q1 // 5 == columns_K // 5)


def manhattan(query: Tensor, key: Tensor) -> Tensor:
    return -(query[..., :, None, :] - key[..., None, :, :]).abs().sum(-1)


def written_out(query: Tensor, key: Tensor, value: Tensor, bonus: Tensor, ease: Tensor) -> Tensor:
    i, j = torch.arange(query.shape[-2])[:, None], torch.arange(key.shape[-2])
    s = query @ key.mT / query.shape[-1] ** 0.5 + bonus * (i // 5 == j // 5)
    w = s.relu() ** 2 * ((i + j) % 2 == 0)
    return w / (w.sum(-1, keepdim=True) + ease) @ value


@pytest.mark.parametrize("length", [SHORT, LONG])
def test_all_of_them_together_are_their_equation_and_learn(length: int) -> None:
    query, key, value = torch.randn(3, 2, length, 8).unbind()
    bonus, ease = torch.tensor([0.7, 1.3]).requires_grad_()
    out = qkv.attention(query, key, value, normalizer=Softmax(ease), mask=Checkered(), bias=Blocks(bonus))
    expected = written_out(query, key, value, bonus, ease)
    torch.testing.assert_close(out, expected)
    g = torch.randn_like(out)
    found, wanted = (torch.autograd.grad(x, (bonus, ease), g) for x in (out, expected))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("length", [SHORT, LONG])
@pytest.mark.parametrize("score", [None, manhattan, "additive"])
def test_a_normalizer_is_never_taken_for_ours_of_that_name(length: int, score: object) -> None:
    query, key, value = torch.randn(3, 2, length, 4).unbind()
    given = qkv.scores.Additive(torch.randn(4)) if score == "additive" else score or qkv.scores.ScaledDot()
    out = qkv.attention(query, key, value, score=given, normalizer=Softmax())  # type: ignore[arg-type]
    torch.testing.assert_close(out, Softmax()(given(query, key)) @ value)  # type: ignore[operator]


@pytest.mark.parametrize("length", [SHORT, LONG])
def test_heads_that_share_keys(length: int) -> None:
    query, key = torch.randn(1, 4, length, 4), torch.randn(1, 2, length, 3)
    score = qkv.scores.Additive(torch.randn(4, 5), torch.randn(4, 5, 4), torch.randn(2, 5, 3))
    out = qkv.attention(query, key, key, score=score, normalizer=Softmax(), enable_gqa=True)
    whole = qkv.scores.Additive(score.vector, score.query_weight, score.key_weight.repeat_interleave(2, 0))
    key = key.repeat_interleave(2, 1)
    torch.testing.assert_close(out, Softmax()(whole(query, key)) @ key)


def test_a_map_makes_whole_rows() -> None:
    query, key = torch.randn(2, 2, SHORT, 4).unbind()
    call = {"normalizer": Softmax(), "mask": Checkered()}
    weights = qkv.attention_with_weights(query, key, key, **call)[1]  # type: ignore[arg-type]
    amap = qkv.attention_map(query, key, **call)  # type: ignore[arg-type]
    torch.testing.assert_close(amap[..., 3:7, 2:9], weights[..., 3:7, 2:9])
    torch.testing.assert_close(amap.received(), weights.sum(-2).double())
    with pytest.raises(UnsupportedError, match="got user-defined Softmax"):
        _ = amap.state
    with pytest.raises(UnsupportedError, match="attention_with_weights gives the weights"):
        qkv.attention_with_state(query, key, key, normalizer=Softmax())


def test_a_fixed_bias_that_is_no_function_of_distance_is_not_read_as_one() -> None:
    query, key, value = torch.randn(3, 1, SHORT, 4).unbind()
    fixed = Blocks(torch.tensor(2.0))
    dense = fixed.tile(torch.arange(SHORT)[:, None], torch.arange(SHORT))
    expected = qkv.attention(query, key, value, bias=dense)
    torch.testing.assert_close(qkv.attention(query, key, value, bias=fixed), expected)


def test_a_layer_takes_them_all_and_trains() -> None:
    bonus = nn.Parameter(torch.zeros(()))
    layer = MultiHeadAttention(16, 4, score=manhattan, normalizer=Softmax())
    layer(torch.randn(2, SHORT, 16), mask=Checkered(), bias=Blocks(bonus)).sum().backward()
    assert bonus.grad is not None
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())
    assert "manhattan" in repr(layer)


def test_a_module_that_owns_parameters_stands_for_its_value() -> None:
    query, key, value = torch.randn(3, 2, SHORT, 8).unbind()
    score, normalizer, bias = AdditiveScore(8, 8, 4), LearnedEntmax(), AlibiBias(2)
    assert qkv.explain(query, key, value, score=score).problem.core == "tanh_sum"  # type: ignore[arg-type]
    given = {"score": score, "normalizer": normalizer, "bias": bias}
    values = {name: module.value() for name, module in given.items()}
    out = qkv.attention(query, key, value, **given)  # type: ignore[arg-type]
    assert torch.equal(out, qkv.attention(query, key, value, **values))  # type: ignore[arg-type]
    assert torch.equal(out, Attention(score, normalizer)(query, key, value, bias=bias))  # type: ignore[arg-type]


class Number(Mask):
    def visible(self, grid: Grid, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        return (columns_K < 3).float()


class Three(Mask):
    def visible(self, grid: Grid, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        return columns_K[:3] < 2


class Wide(Bias):
    def tile(self, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        return torch.zeros(3, 7)


@pytest.mark.parametrize(
    ("argument", "error", "message"),
    [
        (
            {"mask": Number()},
            MaskError,
            r"mask: expected visible\(\) .* a bool .*; got torch.float32 of shape",
        ),
        (
            {"mask": Three()},
            MaskError,
            r"mask: expected .* = \(1, 12, 12\).*; got torch.bool of shape \(3,\)",
        ),
        ({"bias": Wide()}, ShapeError, r"bias: expected a shape that .* = \(1, 12, 12\); got shape \(3, 7\)"),
        ({"normalizer": qkv.normalizers.Hard}, ConfigError, r"got the class Hard. Use Hard\(\)"),
        ({"normalizer": torch.softmax}, ConfigError, "derive from qkv.normalizers.Normalizer"),
        ({"normalizer": "softmax"}, ConfigError, r"got 'softmax'. Pass a value of the class qkv.normalizers.Softmax\."),
        ({"score": "dot"}, ConfigError, r"got 'dot'. Pass a value of the class qkv.scores.Dot\. A function"),
    ],
)
def test_what_does_not_fit_is_named(argument: dict[str, object], error: type[Exception], message: str) -> None:
    query, key, value = torch.randn(3, 1, SHORT, 4).unbind()
    with pytest.raises(error, match=message):
        qkv.attention(query, key, value, **argument)  # type: ignore[arg-type]


def test_a_layer_names_what_it_cannot_take_when_it_is_made() -> None:
    with pytest.raises(ConfigError, match=r"the class Cosine. Use Cosine\(\)"):
        MultiHeadAttention(16, 4, score=qkv.scores.Cosine)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="got 'entmax'"):
        MultiHeadAttention(16, 4, normalizer="entmax")  # type: ignore[arg-type]
