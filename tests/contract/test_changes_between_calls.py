"""No call remembers an argument of an earlier one: the same objects with other numbers give what fresh ones give.

NumPy, `.data`, DLPack and storages change the numbers of a tensor without its version, so that nothing may be looked up
by a tensor's identity or version.
"""

from collections.abc import Callable, Iterator
from itertools import cycle, islice, product
from math import prod
from typing import Any

import pytest
import torch
from tests.contract.calls import MECHANISMS, Call, by_part, same_bits
from tests.contract.changes import BIASES, MASKS, WAYS, B, H, K, Q, other, table
from tests.contract.mechanisms import ON_CPU, SCORE
from tests.pairs import in_turn
from torch import Tensor, nn

import qkv
from qkv.functional import attention, attention_with_state, attention_with_weights
from qkv.masks.patterns import causal, dense, documents, lengths

BACKENDS = (*ON_CPU, "auto")
by_backend = pytest.mark.parametrize("backend", BACKENDS)
by_way = pytest.mark.parametrize("way", WAYS)


def served(backend: str, step: int = 1, gradient: bool = False, **options: Any) -> Iterator[Call]:
    """The first mechanism of each `step` ones that a backend serves."""
    for start in range(0, len(MECHANISMS), step):
        calls = (drawn(turn, **options) for turn in range(start, min(start + step, len(MECHANISMS))))
        fit = (call for call in calls if not (call.normalizer.needs_non_negative and options.get("bias") is not None))
        yield from islice((call for call in fit if call.serves(backend, gradient=gradient)), 1)


def drawn(turn: int, **options: Any) -> Call:
    dtype = torch.float64 if turn % 4 == 0 else torch.float32
    return Call.draw(*MECHANISMS[turn], ((B, H), Q, K), dtype, **options)


def holds(
    compute: Callable[[Any, dict[str, Tensor]], Tensor],
    build: Callable[[dict[str, Tensor]], Any],
    tensors: Any,
    way: Any,
) -> None:
    """Change one tensor after the other, and compare the same values with those built anew.

    Args:
        compute: (values, tensors) -> a result.
        build: tensors -> the values that hold them.
        tensors: by name; those named query, key and value are passed by `compute` itself.
        way: iterates over names of `WAYS`.
    """
    tensors = {name: x.detach().clone() for name, x in tensors.items()}
    values = build(tensors)
    before = [compute(values, tensors) for _ in range(2)]
    assert same_bits(*before)
    seen = False
    for name, x in tensors.items():
        how = next(way)
        WAYS[how](x, other(x.detach()))
        clones = {key: y.clone() for key, y in tensors.items()}
        expected = compute(build(clones), clones)
        assert same_bits(compute(values, tensors), expected), f"{name} changed by {how}"
        seen = seen or not same_bits(expected, before[0])
    assert seen or not tensors


@by_part
@by_backend
def test_inputs_and_parameters(backend: str, whole: bool) -> None:
    """Every score and normalizer; what a function closes over is among the leaves."""
    turns = cycle(WAYS)
    for call in served(backend, 1 if whole else 2):
        for _ in WAYS if whole else range(1):
            names = sorted(call.leaves, key=lambda name: name in ("query", "key", "value"))
            holds(
                lambda values, x: attention(x["query"], x["key"], x["value"], **values, backend=backend),
                call.arguments,
                {name: call.leaves[name] for name in names},
                turns,
            )


@by_part
@pytest.mark.parametrize(("backend", "gradient"), in_turn(BACKENDS, [False, True]))
def test_masks(backend: str, gradient: bool, whole: bool) -> None:
    """Output and gradients are those of the numbers of the call."""
    turns = cycle(WAYS)
    for name, (build, parts) in MASKS.items():
        tensors = {f"{name} {i}": part() for i, part in enumerate(parts)}
        for call in served(backend, 9 if whole else 40, gradient, mask=build(*tensors.values())):

            def compute(mask: Any, _: Any) -> Tensor:
                masked = call.with_options(mask=mask)  # noqa: B023
                if not gradient:
                    return masked.output(backend)
                return torch.cat([x.flatten() for x in masked.gradients(backend)[1].values()])

            for _ in WAYS if whole else range(1):
                holds(compute, lambda x: build(*x.values()), tensors, turns)  # noqa: B023


@by_part
@pytest.mark.parametrize(("backend", "kind"), in_turn(BACKENDS, ["tensor", *BIASES], every=3))
def test_biases(backend: str, kind: str, whole: bool) -> None:
    """Also those that need a gradient."""
    make, shape = BIASES.get(kind, (lambda x: x, (H, Q, K)))
    turns, bias = cycle(WAYS), torch.linspace(0.1, 0.9, prod(shape)).view(shape)
    for mask, learns in product((None, causal(), dense(table())), (False, True)):
        first = make(bias.clone().requires_grad_(learns))
        for call in served(backend, 9 if whole else 20, mask=mask, bias=first):

            def compute(value: Any, x: dict[str, Tensor]) -> Tensor:
                x["bias"].requires_grad_(learns)  # noqa: B023
                return call.with_options(bias=value).output(backend).detach()  # noqa: B023

            for _ in WAYS if whole else range(1):
                holds(compute, lambda x: make(x["bias"]), {"bias": bias}, turns)


@by_part
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("function", ["weights", "state", "map"])
def test_the_functions_beside_attention(function: str, name: str, whole: bool) -> None:
    """In the fast suite each mask changes in one way, and in the next one for the next function."""
    build, parts = MASKS[name]
    turn = list(MASKS).index(name) + len(function)
    query, key, value = torch.randn(3, B, H, Q, 4, generator=torch.Generator().manual_seed(0)).unbind()

    def compute(mask: Any, _: Any) -> Tensor:
        if function == "map":
            return qkv.attention_map(query, key, mask=mask).dense()
        if function == "weights":
            return attention_with_weights(query, key, value, mask=mask)[1]
        return attention_with_state(query, key, value, mask=mask)[1].value

    for way in WAYS if whole else [list(WAYS)[turn % len(WAYS)]]:
        holds(
            compute,
            lambda x: build(*x.values()),
            {f"{name} {i}": part() for i, part in enumerate(parts)},
            cycle([way]),
        )


@by_way
def test_the_kind_of_a_mask_may_change(way: str) -> None:
    """Documents that are contiguous are ranges of keys, others are not."""
    query, key, value = torch.randn(3, B, H, Q, 4, generator=torch.Generator().manual_seed(0)).unbind()
    ids = torch.tensor([0, 0, 0, 1, 1, 2])
    mask = documents(ids)
    kinds = []
    for numbers in ([0, 0, 0, 1, 1, 2], [0, 1, 0, 1, 2, 2], [0, 1, 1, 1, 1, 2]):
        WAYS[way](ids, torch.tensor(numbers))
        kinds.append(qkv.explain(query, key, value, mask=mask).problem.mask)
        expected = attention(query, key, value, mask=documents(torch.tensor(numbers)))
        assert same_bits(attention(query, key, value, mask=mask), expected)
    assert kinds == ["bounds", "predicate", "bounds"]


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("name", "way"),
    [
        *in_turn(("lengths", "dense", "documents"), WAYS, every=5),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in product(("offsets", "dense or causal", "not lengths"), WAYS)
        ),
    ],
)
def test_compiled_functions(name: str, way: str) -> None:
    build, parts = MASKS[name]
    query, key, value = torch.randn(3, B, H, Q, 4, generator=torch.Generator().manual_seed(0)).unbind()
    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
    tensors = {f"{name} {i}": part() for i, part in enumerate(parts)}
    holds(
        lambda mask, _: compiled(query, key, value, mask=mask, score=SCORE["scaled_dot"].build({})),
        lambda x: build(*x.values()),
        tensors,
        cycle([way]),
    )


@pytest.mark.parametrize(
    ("mode", "way"), in_turn([torch.enable_grad, torch.no_grad, torch.inference_mode], WAYS, every=3)
)
def test_layers(mode: Any, way: str) -> None:
    """Their weights, a mask that many calls share, positions, and modules that own parameters."""
    torch.manual_seed(0)
    layers: dict[str, tuple[nn.Module, dict[str, Any]]] = {
        "heads": (qkv.nn.MultiHeadAttention(8, H), {}),
        "additive": (qkv.nn.MultiHeadAttention(8, H, score=qkv.nn.AdditiveScore(4, 4, 3)), {}),
        "sink": (qkv.nn.MultiHeadAttention(8, H, normalizer=qkv.nn.SinkSoftmax(H)), {}),
        "alibi": (qkv.nn.MultiHeadAttention(8, H, positions=qkv.nn.AlibiBias(H)), {}),
    }
    x = torch.randn(B, Q, 8)
    for name, (layer, options) in layers.items():
        count = torch.tensor([3, 5])
        mask = lengths(count)
        with mode():
            layer(x, mask=mask, **options)
            layer(x, mask=mask, **options)
            before = layer(x, mask=mask, **options)
        for path, parameter in {
            "lengths": count,
            **dict(layer.named_parameters()),
            **dict(layer.named_buffers()),
        }.items():
            WAYS[way](parameter, other(parameter.detach()))
            with mode():
                found = layer(x, mask=mask, **options)
            for each in layer.parameters():
                each.data = each.data.clone()
            with mode():
                expected = layer(x.clone(), mask=lengths(count.clone()), **options)
            assert same_bits(found, expected), (name, path)
        assert not same_bits(found, before)
