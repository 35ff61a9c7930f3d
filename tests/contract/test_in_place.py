"""In-place changes between forward and backward raise, as in PyTorch, or change nothing: never a wrong gradient.

Everything a call reads is changed: query, key, value, parameters, a bias, and the tensors held by masks, position
biases and user-defined functions.
"""

from collections.abc import Callable, Iterator
from itertools import cycle, islice
from typing import Any

import pytest
import torch
from tests.contract.calls import MECHANISMS, Call, Request, by_part, request, served_part
from tests.contract.changes import BIASES, MASKS, B, H, K, Q, table
from tests.contract.mechanisms import ON_CPU
from tests.contract.served import by_served
from tests.here import here
from tests.pairs import in_turn
from torch import Tensor, nn

import qkv
from qkv.functional import attention
from qkv.masks.base import Mask
from qkv.masks.patterns import causal, dense, lengths

CHANGED = "modified by an inplace operation"
by_backend = pytest.mark.parametrize("backend", ON_CPU)


def change(x: Tensor) -> None:
    with torch.no_grad():
        if x.dtype == torch.bool:
            x.logical_not_()
        else:
            x.add_(1)


def holds(compute: Callable[[], tuple[Tensor, list[Tensor], dict[str, Tensor]]]) -> None:
    """Change each tensor that a call reads, one at a time.

    `compute` builds everything from scratch: an output, the leaves of its gradients, and the tensors to change.
    """
    output, leaves, readable = compute()
    expected = torch.autograd.grad(output.sum(), leaves, materialize_grads=True)
    for name in readable:
        output, leaves, again = compute()
        total = output.sum()
        change(again[name])
        found = _gradients(total, leaves)
        assert found is None or all(map(torch.equal, found, expected)), f"{name} changed unseen"


def _gradients(total: Tensor, leaves: list[Tensor]) -> tuple[Tensor, ...] | None:
    """None if PyTorch reports that something changed."""
    try:
        return torch.autograd.grad(total, leaves, materialize_grads=True)
    except RuntimeError as error:
        if CHANGED in str(error):
            return None
        raise


def call_with(call: Call, backend: str, options: Callable[[], tuple[dict[str, Any], dict[str, Tensor]]]) -> None:
    def compute() -> tuple[Tensor, list[Tensor], dict[str, Tensor]]:
        given, more = options()
        leaves = {name: x.clone().requires_grad_() for name, x in call.leaves.items()}
        output = call.with_options(**given)._call(attention, leaves, backend)
        return output, list(leaves.values()), {**leaves, **more}

    holds(compute)


def every_call(**options: Any) -> list[Call]:
    """With as many queries as keys, and in float32, which most kernels require."""
    kinds = (torch.float64, torch.float32, torch.float32, torch.float32)
    return [
        Call.draw(*mechanism, ((B, H), Q, K), dtype, **options)
        for mechanism, dtype in zip(MECHANISMS, cycle(kinds), strict=False)
    ]


def served(backend: str, **options: Any) -> Iterator[Call]:
    return (call for call in every_call(**options) if call.serves(backend))


@by_part
@by_backend
def test_inputs_and_parameters_that_change_in_place_are_seen(backend: str, whole: bool) -> None:
    for call in islice(served(backend), 0, None, 1 if whole else 3):
        call_with(call, backend, lambda: ({}, {}))
    for call in islice(served(backend, bias=torch.zeros(Q, K)), 0, None, 1 if whole else 3):

        def biased() -> tuple[dict[str, Any], dict[str, Tensor]]:
            bias = torch.linspace(-1, 1, Q * K, dtype=call.leaves["query"].dtype).view(Q, K)  # noqa: B023
            return {"bias": bias}, {"bias": bias}

        call_with(call, backend, biased)


@by_part
@pytest.mark.parametrize(("backend", "name"), in_turn(ON_CPU, MASKS, every=4))
def test_masks_that_change_in_place_are_seen(backend: str, name: str, whole: bool) -> None:
    build, parts = MASKS[name]

    def masked() -> tuple[dict[str, Any], dict[str, Tensor]]:
        tensors = [part() for part in parts]
        return {"mask": build(*tensors)}, {f"tensor {i} of the mask": x for i, x in enumerate(tensors)}

    turn, share = (0, 1) if whole else (list(MASKS).index(name), 15)
    for call in served_part(every_call(**masked()[0]), lambda call: call.serves(backend), turn, share):
        call_with(call, backend, masked)


@pytest.mark.parametrize("kind", [lengths, dense])
@by_backend
def test_masks_made_in_inference_mode_are_seen_too(backend: str, kind: Callable[..., Mask]) -> None:
    """An inference tensor has no version, and no graph saves it; it can still change."""
    for call in islice(served(backend, mask=dense(table())), 2):
        results = []
        for changes in (False, True):
            with torch.inference_mode():
                tensor = torch.tensor([3, 5]) if kind is lengths else table()
            mask = kind(tensor) | causal() if kind is lengths else kind(tensor)
            leaves = {name: x.clone().requires_grad_() for name, x in call.leaves.items()}
            output = call.with_options(mask=mask)._call(attention, leaves, backend)
            with torch.inference_mode():
                change(tensor) if changes else None
            results.append(torch.autograd.grad(output.sum(), list(leaves.values()), materialize_grads=True))
        assert all(map(torch.equal, *results))


def drawn() -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(1)
    return {name: torch.randn(B, H, Q, 4, dtype=torch.float64, generator=g) for name in ("query", "key", "value")}


def positioned(name: str, learns: bool, kind: str) -> Request:
    build, parts = MASKS.get(name, (causal, []))
    make, shape = BIASES[kind]
    bias = make(torch.full(shape, 0.3).requires_grad_(learns))
    return request(*(x.requires_grad_() for x in drawn().values()), bias=bias, mask=build(*(part() for part in parts)))


@by_served(
    positioned,
    here("reference", "blocked", "sdpa", "rowwise"),
    name=["causal", "dense or causal", "scattered documents"],
    learns=[False, True],
    kind=BIASES,
)
def test_biases_from_positions_that_change_in_place_are_seen(backend: str, name: str, learns: bool, kind: str) -> None:
    build, parts = MASKS.get(name, (causal, []))
    make, shape = BIASES[kind]

    def compute() -> tuple[Tensor, list[Tensor], dict[str, Tensor]]:
        query, key, value = (x.clone().requires_grad_() for x in drawn().values())
        tensors, own = [part() for part in parts], torch.full(shape, 0.3).requires_grad_(learns)
        output = attention(query, key, value, bias=make(own), mask=build(*tensors), backend=backend)
        leaves = [query, key, value, *([own] if learns else [])]
        more = {f"tensor {i} of the mask": x for i, x in enumerate(tensors)}
        return output, leaves, {"query": query, "key": key, "value": value, "bias": own, **more}

    holds(compute)


class Network(nn.Module):
    """A user-defined score that counts its calls; that state is its own business."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4).double()
        self.register_buffer("shift", torch.ones(4, dtype=torch.float64))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        self.calls += 1
        bent = torch.tanh(self.inner(query)).clone()
        bent *= self.shift
        return bent @ key.mT


def network() -> tuple[Any, dict[str, Tensor]]:
    torch.manual_seed(0)
    module = Network()
    return module, {name: x for name, x in module.state_dict(keep_vars=True).items() if name != "calls"}


def closure() -> tuple[Any, dict[str, Tensor]]:
    module, tensors = network()
    weight = torch.full((4,), 0.5, dtype=torch.float64).requires_grad_()
    return lambda query, key: module(query * weight, key), {**tensors, "weight": weight}


@pytest.mark.parametrize("build", [network, closure])
@pytest.mark.parametrize("backend", ["reference", "blocked"])
@pytest.mark.parametrize("name", ["none", "dense", "not lengths"])
def test_what_a_function_closes_over_is_seen_when_it_changes(backend: str, name: str, build: Any) -> None:
    mask, parts = MASKS.get(name, (lambda: None, []))

    def compute() -> tuple[Tensor, list[Tensor], dict[str, Tensor]]:
        score, tensors = build()
        leaves = {key: x.clone().requires_grad_() for key, x in drawn().items()}
        bias = torch.linspace(-1, 1, K, dtype=torch.float64).requires_grad_()
        masked = [part() for part in parts]
        output = attention(*leaves.values(), score=score, bias=bias, mask=mask(*masked), backend=backend)
        learned = [x for x in tensors.values() if x.requires_grad]
        more = {f"tensor {i} of the mask": x for i, x in enumerate(masked)}
        return output, [*leaves.values(), bias, *learned], {**leaves, "bias": bias, **tensors, **more}

    holds(compute)


@pytest.mark.parametrize("statistic", ["received", "entropy"])
@pytest.mark.parametrize("name", ["none", "dense", "not lengths", "documents"])
def test_statistics_of_a_map_see_what_changes(statistic: str, name: str) -> None:
    mask, parts = MASKS.get(name, (lambda: None, []))

    def compute() -> tuple[Tensor, list[Tensor], dict[str, Tensor]]:
        leaves = {key: x.clone().requires_grad_() for key, x in drawn().items()}
        bandwidth = torch.ones(H, dtype=torch.float64).requires_grad_()
        masked = [part() for part in parts]
        score = qkv.scores.SquaredDistance(bandwidth)
        amap = qkv.attention_map(leaves["query"], leaves["key"], score=score, mask=mask(*masked))
        more = {f"tensor {i} of the mask": x for i, x in enumerate(masked)}
        leaves = {"query": leaves["query"], "key": leaves["key"], "bandwidth": bandwidth}
        return getattr(amap, statistic)(), list(leaves.values()), {**leaves, **more}

    holds(compute)
