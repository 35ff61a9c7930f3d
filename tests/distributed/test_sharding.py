"""What one process computes, several compute: biases, masks, dropout, states, models; and what they send."""

from itertools import product
from typing import Any

import pytest
import torch
from tests.distributed import work
from tests.distributed.group import Processes
from tests.distributed.work import CALLS, assembled, joined
from torch import Tensor

from qkv.distributed import Layout
from qkv.functional import attention, attention_with_state, attention_with_weights
from qkv.introspect import attention_map
from qkv.masks import causal
from qkv.normalizers import Softmax
from qkv.recording import record

SPLITS = {1: ((23,), (29,)), 2: ((4, 19), (20, 9)), 3: ((10, 0, 13), (0, 17, 12)), 4: ((5, 6, 7, 5), (1, 11, 0, 17))}
HOW = [("contiguous", "auto"), ("zigzag", "auto"), ("zigzag", "gather")]
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ("rotary", "sinusoidal", "learned", "alibi", "relative", "none")},
    "window": ("rotary", {"window": 3}),
}


def near(x: Tensor, y: Tensor) -> bool:
    """Whether both are equal but for roundings of float64."""
    return x.shape == y.shape and bool(((x - y).abs() <= 1e-12 * (1 + y.abs().max())).all())


def expect_alike(output: Tensor, gradients: dict[str, Tensor], exact: Tensor, slopes: dict[str, Tensor]) -> None:
    assert near(output, exact)
    assert [name for name in slopes if not near(gradients[name], slopes[name])] == []


@pytest.mark.parametrize("name", CALLS)
def test_calls_are_those_of_one_process(name: str, processes: Processes) -> None:
    leaves = {name: x.requires_grad_() for name, x in work.leaves_of(name).items()}
    exact = attention(leaves["query"], leaves["key"], leaves["value"], **work.options_of(name, leaves))
    slopes = work.pulled(exact, leaves, work.cotangent_of(leaves))
    start = list(CALLS).index(name)
    for size, (layout, method) in list(product(SPLITS, HOW))[start % 2 :: 2]:
        answers = processes.run(size, "call", name, layout, method, SPLITS[size])
        layouts = [Layout(layout, count) for count in SPLITS[size]]  # type: ignore[arg-type]
        expect_alike(*assembled(answers, *layouts), exact, slopes)


@pytest.mark.parametrize("name", ["sink", "dense", "biased_sigmoid", "masks", "dropout", "dropout_entmax"])
@pytest.mark.parametrize("what", ["state", "weights"])
def test_states_and_weights_are_those_of_one_process(name: str, what: str, processes: Processes) -> None:
    leaves = work.leaves_of(name)
    function: Any = attention_with_state if what == "state" else attention_with_weights
    tensors = leaves["query"], leaves["key"], leaves["value"]
    output, other = function(*tensors, **work.options_of(name, leaves))
    answers = processes.run(3, "also", name, what, SPLITS[3])
    layout = Layout("zigzag", SPLITS[3][0])
    assert near(joined([output for output, _ in answers], layout), output)
    if what == "weights":
        assert near(joined([weights for _, weights in answers], layout), other)
        return
    state = joined([state for _, (state, _) in answers], layout, -1)
    assert torch.allclose(state, other.value, rtol=1e-12)
    if other.winner is not None:
        assert torch.equal(joined([winner for _, (_, winner) in answers], layout, -1).long(), other.winner)


def test_states_have_gradients(processes: Processes) -> None:
    leaves = {name: x.requires_grad_() for name, x in work._leaves().items()}
    output, state = attention_with_state(*leaves.values(), mask=causal(), normalizer=Softmax(sink=0.5))
    both = torch.cat([output, state.lse.unsqueeze(-1)], -1)
    layouts = [Layout("zigzag", counts) for counts in SPLITS[3]]
    answers = processes.run(3, "state_gradients", SPLITS[3])
    parts = [x for x, _ in answers]
    slopes = [torch.linspace(-1, 1, x.numel(), dtype=x.dtype).view(x.shape) for x in parts]
    exact = work.pulled(both, leaves, joined(slopes, layouts[0]))
    expect_alike(*assembled(answers, *layouts), both, exact)


@pytest.mark.parametrize("name", MODELS)
def test_models_are_those_of_one_process(name: str, processes: Processes) -> None:
    positions, options = MODELS[name]
    for counts, layout in (((6, 5), "zigzag"), ((0, 9, 2), "contiguous"), ((1, 1, 1, 1), "zigzag")):
        network, where = work.model_of(positions, **options), Layout(layout, counts)  # type: ignore[arg-type]
        logits = network(work.tokens_of(where.length))
        logits.sin().sum().backward()
        answers = processes.run(len(counts), "model", positions, options, layout, counts)
        assert near(joined([part for part, _ in answers], where), logits)
        for parameter, x in network.named_parameters():
            total = sum(gradients[parameter] for _, gradients in answers if parameter in gradients)
            assert x.grad is None or near(total, x.grad), parameter


@pytest.mark.parametrize("name", MODELS)
def test_recordings_are_those_of_one_process(name: str, processes: Processes) -> None:
    positions, options = MODELS[name]
    for counts, layout in (((6, 5), "zigzag"), ((0, 9, 2), "contiguous")):
        network = work.model_of(positions, **options)
        with record(network) as trace:
            network(work.tokens_of(sum(counts)))
        answers = processes.run(len(counts), "recorded", positions, options, layout, counts)
        for answer, layer in product(answers, trace.layers):
            assert all(near(x, y) for x, y in zip(answer[layer], work.described(trace, layer), strict=True))


@pytest.mark.parametrize("name", [name for name in CALLS if "dropout" not in name])
def test_maps_are_those_of_one_process(name: str, processes: Processes) -> None:
    leaves = work.leaves_of(name)
    amap = attention_map(leaves["query"], leaves["key"], **CALLS[name](leaves))
    with_state = "closure" in name or name in ("sink", "masks")
    for size, layout in ((2, "zigzag"), (3, "contiguous"), (4, "zigzag")):
        answers = processes.run(size, "map_of_rows", name, layout, SPLITS[size], with_state)
        assert near(joined([rows for rows, _ in answers], Layout(layout, SPLITS[size][0])), amap.dense())  # type: ignore[arg-type]
        assert all(near(received, amap.received()) for _, both in answers for received in both)


@pytest.mark.parametrize(
    ("what", "named"),
    [("width", "shapes"), ("mask", "mask and bias"), ("gradient", "gradients"), ("map", "the same call")],
)
def test_processes_that_make_other_calls_are_named(what: str, named: str, processes: Processes) -> None:
    for error in processes.run(3, "different", what):
        assert named in error
        assert "another in process" in error


@pytest.mark.parametrize("what", [*work.REFUSED, *work.WRONG])
def test_what_a_shard_does_not_do_is_refused(what: str, processes: Processes) -> None:
    kinds = {"bias": "ShapeError", "mask": "MaskError"}
    assert all(error.startswith(kinds.get(what, "UnsupportedError")) for error in processes.run(2, "refused", what))


@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
def test_parts_join(layout: str, processes: Processes) -> None:
    x = torch.arange(14).view(2, 7)
    for rank, (part, whole) in enumerate(processes.run(3, "halves", layout)):
        assert torch.equal(whole, x)
        where = Layout.even(layout, 7, 3)  # type: ignore[arg-type]
        assert torch.equal(part, x[:, where.positions(rank)])


def test_layouts_cover_all_positions_once() -> None:
    for counts in ((5, 0, 3), (1, 1), (0, 0), (4, 4, 4, 4), (7,)):
        for layout in ("contiguous", "zigzag"):
            where = Layout(layout, counts)  # type: ignore[arg-type]
            positions = torch.cat([where.positions(rank) for rank in range(len(counts))])
            assert positions.sort().values.tolist() == list(range(sum(counts)))
            assert [len(where.positions(rank)) for rank in range(len(counts))] == list(counts)
