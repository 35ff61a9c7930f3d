"""A call without an item or a head has nothing to compute, at any length: empty results, and gradients of zeros."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.contract.judge import legal, parameters
from tests.contract.mechanisms import HEADS, NORMALIZERS, SCORES, NormalizerCase, ScoreCase
from torch import Tensor

import qkv
from qkv.biases import alibi, relative
from qkv.engine.describe import Arguments, describe
from qkv.errors import MaskError, ShapeError
from qkv.masks import Mask, causal, documents, lengths, window

SHORT, LONG = (6, 7), (600, 655)
"""Numbers of queries and keys below and beyond the limit of the full matrix."""
VALUE_WIDTH = 5
Case = tuple[ScoreCase, NormalizerCase, tuple[int, ...]]


def cases() -> Iterator[Case]:
    for score in SCORES:
        for normalizer in NORMALIZERS:
            if legal(score, normalizer):
                yield score, normalizer, (0, HEADS)
                if not score.shapes(score.width, score.key_width) and not normalizer.shapes:
                    yield from ((score, normalizer, leading) for leading in ((2, 0), (0,), (3, 0, 2)))


def options(queries: int, keys: int, leading: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    """Yield whatever else would take a matrix."""
    masks: list[Mask] = [causal(), ~causal(), window(2, 1) | lengths(3), lengths(torch.ones(leading[:1]).long())]
    yield from ({"mask": mask} for mask in masks)
    yield {"mask": documents(torch.arange(queries) % 3, torch.arange(keys) % 3)}
    yield {"bias": alibi(torch.tensor(0.2, requires_grad=True))}
    yield {"bias": relative(torch.zeros(5, requires_grad=True))}
    yield {"dropout": 0.2}
    yield {}


def results(case: Case, sizes: tuple[int, int], given: dict[str, Any]) -> tuple[list[tuple[Any, ...]], list[Any]]:
    """Return shapes and dtypes of all results, with Q and K as letters, and which inputs have a gradient, of zeros."""
    score, normalizer, leading = case
    queries, keys = sizes
    numbers = {name: x.requires_grad_() for name, x in parameters(score, torch.Generator()).items()}
    others = {name: torch.full(shape, 1.5, requires_grad=True) for name, shape in normalizer.shapes.items()}
    shapes = (queries, score.width), (keys, score.key_width), (keys, VALUE_WIDTH)
    inputs = [torch.randn(*leading, *shape, requires_grad=True) for shape in shapes]
    call = {**given, "score": score.build(numbers), "normalizer": normalizer.build(others)}
    output = qkv.attention(*inputs, **call)
    with_weights, weights = qkv.attention_with_weights(*inputs, **call)
    with_state, state = qkv.attention_with_state(*inputs, **call)
    found = [output, with_weights, with_state, weights, state.value]
    if not given.get("dropout"):
        amap = qkv.attention_map(*inputs[:2], **call)
        found += [amap.dense(None), amap.received(), amap.peak()]
    letters = {queries: "Q", keys: "K"}
    described = [(tuple(letters.get(size, size) for size in x.shape), x.dtype) for x in found]
    learned = getattr(given.get("bias"), "slopes", getattr(given.get("bias"), "table", None))
    leaves = [*inputs, *numbers.values(), *others.values(), *([learned] if isinstance(learned, Tensor) else [])]
    gradients: list[Any] = []
    for result in (output, with_weights, with_state):
        gradients += torch.autograd.grad(result.sum(), leaves, allow_unused=True, retain_graph=True)
    assert all(gradient is None or not gradient.any() for gradient in gradients)
    return described, [gradient if gradient is None else gradient.dtype for gradient in gradients]


@pytest.mark.parametrize("leading", [(0, HEADS), (2, 0), (0,), (3, 0, 2)], ids=str)
def test_a_long_empty_call_gives_what_a_short_one_gives(leading: tuple[int, ...]) -> None:
    for turn, case in enumerate(cases()):
        if case[2] == leading:
            every = [list(options(*sizes, leading)) for sizes in (SHORT, LONG)]
            for place, (short, long) in enumerate(zip(*every, strict=True)):
                if "bias" in short and case[1].needs_non_negative:
                    continue
                if place in (turn % 8, 8):  # what else is given changes little between mechanisms
                    assert results(case, LONG, long) == results(case, SHORT, short), (case[0].name, case[1].name, long)


def test_what_two_empty_results_share() -> None:
    """An output with the leading shape of the inputs, and every input with a gradient."""
    described, gradients = results((SCORES[0], NORMALIZERS[0], (0, HEADS)), LONG, {})
    assert described[0] == ((0, HEADS, "Q", VALUE_WIDTH), torch.float32)
    assert described[3] == ((0, HEADS, "Q", "K"), torch.float32)
    assert described[4] == ((0, HEADS, "Q"), torch.float64)
    assert gradients[:3] == [torch.float32] * 3


def test_an_empty_call_takes_no_matrix() -> None:
    """10¹⁰ pairs of each head would be 10 GB of a mask."""
    n = 100_000
    x = torch.randn(0, 2, n, 4, requires_grad=True)
    for given in options(n, n, (0, 2)):
        output = qkv.attention(x, x, x, **given)
        assert output.shape == x.shape
        output.sum().backward()
        weights = qkv.attention_with_weights(x, x, x, **given)[1]
        assert weights.shape == (0, 2, n, n)


def test_heads_may_be_grouped_and_the_batch_empty() -> None:
    query, key = torch.randn(0, 4, 600, 8), torch.randn(0, 2, 655, 8)
    assert qkv.attention(query, key, key, enable_gqa=True, mask=causal()).shape == (0, 4, 600, 8)


def test_errors_of_an_empty_call_are_those_of_any_other() -> None:
    x = torch.randn(0, 2, 600, 4)
    with pytest.raises(MaskError):
        qkv.attention(x, x, x, mask=torch.ones(600, 599, dtype=torch.bool))
    with pytest.raises(ShapeError):
        qkv.attention(x, x, x, mask=lengths(torch.ones(3).long()))


def test_lowered_masks_of_empty_calls_hide_nothing() -> None:
    x = torch.randn(0, 2, 600, 4)
    arguments = Arguments(qkv.scores.Dot(), None, ~causal(), None, 0.0, None, False)
    assert describe(x, x, x, arguments).problem.mask == "all"
