"""A bias is added to the scores before the mask, broadcasts, and is learned."""

from collections.abc import Iterator
from itertools import product

import pytest
import torch
from tests.contract.calls import Request, near, refused, request
from tests.contract.served import by_served
from torch import Tensor

from qkv.functional import attention, attention_with_weights
from qkv.masks.base import Mask
from qkv.masks.patterns import causal, lengths
from qkv.normalizers.base import Normalizer
from qkv.normalizers.dense import Hard, Identity, Mean, Sigmoid, Softmax
from qkv.normalizers.sparse import Entmax, Sparsemax
from qkv.scores.products import ScaledDot
from qkv.scores.sums import Additive

NORMALIZERS = (Softmax(), Softmax(0.5), Mean(), Identity(), Sigmoid(), Hard(), Sparsemax(), Entmax())
SHAPES = [(5, 7), (7,), (1, 1), (3, 1, 1), (3, 5, 7), (2, 3, 5, 7), (2, 1, 5, 1), (2, 1, 1, 7), ()]
MASKS = {"none": None, "causal": causal(), "lengths": lengths(torch.tensor([4, 7])), "or": causal() | lengths(2)}


def inputs() -> list[Tensor]:
    shapes = ((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6))
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


WHOLE = list(product(NORMALIZERS, MASKS.values()))


def one_mask_each(shape: tuple[int, ...]) -> list[tuple[Normalizer, Mask | None]]:
    """Every normalizer with one mask, cycling through the masks over the shapes."""
    masks, turn = list(MASKS.values()), SHAPES.index(shape)
    return [(normalizer, masks[(place + turn) % len(masks)]) for place, normalizer in enumerate(NORMALIZERS)]


SCORES = {"dot": ScaledDot(), "additive": Additive(torch.ones(4, dtype=torch.float64))}


def biased(shape: tuple[int, ...], kind: str, whole: bool) -> Iterator[Request]:
    bias = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    for normalizer, mask in WHOLE if whole else one_mask_each(shape):
        for given in (bias, bias.detach()):
            yield request(*inputs(), score=SCORES[kind], normalizer=normalizer, bias=given, mask=mask)


@by_served(biased, every=2, shape=SHAPES, kind=SCORES, whole=[False, pytest.param(True, marks=pytest.mark.slow)])
def test_bias_is_added_to_the_scores(backend: str, shape: tuple[int, ...], kind: str, whole: bool) -> None:
    query, key, value = inputs()
    score, bias = SCORES[kind], torch.randn(shape, dtype=torch.float64, requires_grad=True)
    for normalizer, mask in WHOLE if whole else one_mask_each(shape):
        for given in (bias, bias.detach()):
            options = {"score": score, "normalizer": normalizer, "bias": given, "mask": mask}
            if refused(backend, query, key, value, **options):
                continue
            output, weights = attention_with_weights(query, key, value, **options, backend=backend)
            s = score(query, key) + given
            seen = None if mask is None else _table(mask)
            assert near(weights, normalizer(s, seen)), mask
            assert near(output, normalizer(s, seen) @ value), mask
            if given.requires_grad:
                wanted = [bias, query, key, value]
                ours = torch.autograd.grad(output.sum(), wanted, materialize_grads=True)
                theirs = torch.autograd.grad((normalizer(s, seen) @ value).sum(), wanted, materialize_grads=True)
                assert all(near(a, b, 2000) for a, b in zip(ours, theirs, strict=True)), mask


def _table(mask) -> Tensor:
    from qkv.masks.lower import matrix

    return matrix(mask, 5, 7, (2, 3))


def padded() -> Request:
    bias = torch.randn(2, 1, 5, 7, dtype=torch.float64)
    return request(*inputs(), bias=bias, mask=lengths(torch.tensor([4, 6])))


@by_served(padded)
def test_nan_in_the_bias_of_hidden_pairs_changes_no_bit(backend: str) -> None:
    query, key, value = padded().tensors
    bias, mask = padded().options.values()
    dirty = torch.where(_table(mask)[:, :1], bias, torch.nan)
    clean = attention(query, key, value, bias=bias, mask=mask, backend=backend)
    output = attention(query, key, value, bias=dirty, mask=mask, backend=backend)
    assert torch.equal(output, clean)
    ours = torch.autograd.grad(output.sum(), [query, key, value])
    theirs = torch.autograd.grad(clean.sum(), [query, key, value])
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def hiding() -> tuple[Request, Tensor]:
    """A request, and the pairs that its bias does not hide."""
    seen = torch.rand(5, 7) < 0.6
    seen[:, 0] = True
    return request(*inputs(), bias=torch.zeros(5, 7, dtype=torch.float64).masked_fill(~seen, -torch.inf)), seen


@by_served(lambda: hiding()[0])
def test_minus_infinity_in_a_bias_hides_a_pair(backend: str) -> None:
    call, seen = hiding()
    query, key, value = call.tensors
    output = attention(query, key, value, **call.options, backend=backend)
    assert near(output, attention(query, key, value, mask=seen, backend="reference"))
    gradients = torch.autograd.grad(output.sum(), [query, key, value])
    assert all(x.isfinite().all() for x in gradients)
