"""Per-item data aligns from the left, even when B = H; parameters align from the right."""

from collections.abc import Callable

import torch
from tests.contract.calls import Request, near, request
from tests.contract.served import by_served
from torch import Tensor

from qkv.functional import attention
from qkv.masks.base import Mask
from qkv.masks.patterns import causal, documents, lengths, span, window
from qkv.normalizers.base import Normalizer
from qkv.normalizers.dense import Sigmoid, Softmax, Sum
from qkv.normalizers.sparse import Entmax
from qkv.scores.base import Score
from qkv.scores.kernels import Epanechnikov, Gaussian, SquaredDistance
from qkv.scores.products import Bilinear, Cosine, ScaledDot
from qkv.scores.sums import Additive, Concat

N = 3  # both items and heads: here, alignment from the wrong side would go unnoticed


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    return draw(N, N, 6, 4), draw(N, N, 7, 4), draw(N, N, 7, 2)


PER_ITEM: dict[str, tuple[Callable[[Tensor], Mask], Callable[[Tensor], Mask]]] = {
    "lengths": (lengths, lambda x: lengths(int(x))),
    "span": (lambda x: span(x, 6), lambda x: span(int(x), 6)),
    "query lengths": (lambda x: lengths(None, x), lambda x: lengths(None, int(x))),
    "offset": (lambda x: causal(x - 2), lambda x: causal(int(x) - 2)),
    "window": (lambda x: window(1, 1, offset=x), lambda x: window(1, 1, offset=int(x))),
    "or": (lambda x: lengths(x) | causal(x), lambda x: lengths(int(x)) | causal(int(x))),
    "not": (lambda x: ~lengths(x), lambda x: ~lengths(int(x))),
}


def numbered(per_head: bool) -> Tensor:
    return torch.randint(1, 6, (N, N) if per_head else (N,))


def per_item(kind: str, per_head: bool) -> Request:
    return request(*inputs(), mask=PER_ITEM[kind][0](numbered(per_head)))


@by_served(per_item, per_head=[False, True], kind=PER_ITEM)
def test_per_item_data_aligns_from_the_left(backend: str, kind: str, per_head: bool) -> None:
    together, alone = PER_ITEM[kind]
    query, key, value = inputs()
    numbers = numbered(per_head)
    output = attention(query, key, value, mask=together(numbers), backend=backend)
    for b in range(N):
        for h in range(N):
            number = numbers[b, h] if per_head else numbers[b]
            expected = attention(query[b, h], key[b, h], value[b, h], mask=alone(number), backend="reference")
            assert near(output[b, h], expected)


def test_document_ids_align_from_the_left() -> None:
    query, value = draw(N, N, 7, 4), draw(N, N, 7, 2)
    ids = torch.randint(0, 3, (N, 7)).sort(-1).values
    output = attention(query, query, value, mask=documents(ids))
    for b in range(N):
        expected = attention(query[b], query[b], value[b], mask=documents(ids[b]), backend="reference")
        assert near(output[b], expected)


PER_HEAD: dict[str, tuple[Callable[[], Tensor], Callable[[Tensor], tuple[Score, Normalizer]]]] = {
    "scale": (lambda: draw(N), lambda x: (ScaledDot(x), Softmax())),
    "cosine": (lambda: draw(N), lambda x: (Cosine(x), Softmax())),
    "bandwidth": (lambda: draw(N).exp(), lambda x: (Gaussian(x), Sum())),
    "distance": (lambda: draw(N).exp(), lambda x: (SquaredDistance(x), Softmax())),
    "epanechnikov": (lambda: draw(N).exp() + 3, lambda x: (Epanechnikov(x), Sum())),
    "sink": (lambda: draw(N), lambda x: (ScaledDot(), Softmax(x))),
    "alpha": (lambda: 1.2 + draw(N).sigmoid() / 2, lambda x: (ScaledDot(), Entmax(x))),
    "sigmoid": (lambda: draw(N), lambda x: (ScaledDot(), Sigmoid(x))),
    "weight": (lambda: draw(N, 4, 4), lambda x: (Bilinear(x), Softmax())),
    "vector": (lambda: draw(N, 4), lambda x: (Additive(x), Softmax())),
    "concat": (lambda: draw(N, 4), lambda x: (Concat(x, x * 2, "leaky_relu"), Softmax())),
}


def per_head(kind: str) -> Request:
    make, mechanism = PER_HEAD[kind]
    score, normalizer = mechanism(make())
    return request(*inputs(), score=score, normalizer=normalizer)


@by_served(per_head, kind=PER_HEAD)
def test_parameters_align_from_the_right(backend: str, kind: str) -> None:
    make, mechanism = PER_HEAD[kind]
    query, key, value = inputs()
    parameter = make()
    score, normalizer = mechanism(parameter)
    output = attention(query, key, value, score=score, normalizer=normalizer, backend=backend)
    for h in range(N):
        one, other = mechanism(parameter[h])
        expected = attention(query[:, h], key[:, h], value[:, h], score=one, normalizer=other, backend="reference")
        assert near(output[:, h], expected)


def test_a_parameter_per_item_and_head() -> None:
    """Data can have all leading dimensions."""
    query, key, value = inputs()
    bandwidth = draw(N, N).exp()
    output = attention(query, key, value, score=Gaussian(bandwidth))
    for b in range(N):
        expected = attention(query[b], key[b], value[b], score=Gaussian(bandwidth[b]), backend="reference")
        assert near(output[b], expected)


def laid_out(kind: str, layout: str) -> tuple[Request, Tensor]:
    """The request, and its parameter."""
    make, mechanism = PER_HEAD[kind]
    query, key, value = inputs()
    if layout == "no heads":
        query, key, value = query[:, 0], key[:, 0], value[:, 0]
    if layout == "grouped":
        key, value = key[:, :1], value[:, :1]
    for x in (query, key, value):
        x.requires_grad_()
    by_item = torch.stack([make() for _ in range(N)])  # one for each head of each item
    parameter = by_item[:, 0] if layout == "no heads" else by_item if layout == "per item and head" else by_item[:, :1]
    parameter = parameter.clone().requires_grad_()
    score, normalizer = mechanism(parameter)
    options = {"score": score, "normalizer": normalizer, "enable_gqa": layout == "grouped"}
    return request(query, key, value, **options), parameter


@by_served(
    lambda kind, layout: laid_out(kind, layout)[0],
    every=2,
    layout=["per item", "per item and head", "no heads", "grouped"],
    kind=PER_HEAD,
)
def test_a_parameter_per_item_is_that_of_each_item(backend: str, layout: str, kind: str) -> None:
    """From the right, the dimension of heads comes last: (B, 1, ...) is per item, (B, ...) where there are no heads."""
    call, parameter = laid_out(kind, layout)
    query, key, value = call.tensors
    learned = (query, key, value, parameter)
    output = attention(query, key, value, **call.options, backend=backend)
    alone = []
    for b in range(N):
        one, other = PER_HEAD[kind][1](parameter[b])
        mine = {"score": one, "normalizer": other, "enable_gqa": layout == "grouped"}
        alone.append(attention(query[b], key[b], value[b], **mine, backend="reference"))
    expected = torch.stack(alone)
    assert near(output, expected)
    toward = torch.randn_like(expected)
    gradients = [torch.autograd.grad(x, learned, toward, allow_unused=True) for x in (output, expected)]
    for ours, theirs in zip(*gradients, strict=True):
        assert (ours is None) == (theirs is None)
        assert ours is None or near(ours, theirs)
