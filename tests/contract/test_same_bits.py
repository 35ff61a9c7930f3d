"""Requesting weights, requesting the state, or repeating a call does not change a bit."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial

import pytest
import torch
from tests.contract.calls import MECHANISMS, Call, Request, by_part, drawn, near, same_bits, served_part
from tests.contract.mechanisms import NORMALIZER, ON_CPU, SCORE, ScoreCase
from tests.contract.served import by_served

from qkv.functional import attention_with_state, attention_with_weights
from qkv.masks.patterns import causal, lengths
from qkv.planner import plan, plan_cache
from qkv.scores.products import ScaledDot

BACKENDS = [*ON_CPU, "auto"]
SLOW = pytest.mark.slow
DTYPES = [torch.float32, *(pytest.param(x, marks=SLOW) for x in (torch.float64, torch.bfloat16, torch.float16))]
MASKS = {
    "none": None,
    "causal": causal(),
    "lengths": lengths(torch.tensor([4, 6])),
    "dense": torch.rand(2, 1, 5, 7, generator=torch.Generator().manual_seed(0)) < 0.6,
    "dense per head": torch.rand(2, 2, 5, 7, generator=torch.Generator().manual_seed(1)) < 0.6,
}


def calls(
    backend: str, dtype: torch.dtype, mask: str, state: bool = False, gradient: bool = True, turn: int | None = None
) -> list[Call]:
    """Those that a backend serves; with a turn a quarter of them."""
    found = [Call.draw(*mechanism, dtype=dtype, mask=MASKS[mask]) for mechanism in MECHANISMS]
    parts = (0, 1) if turn is None else (turn, 4)
    return served_part(found, lambda call: backend == "auto" or call.serves(backend, state, gradient), *parts)


def requests(dtype: torch.dtype, mask: str, gradient: bool = True) -> Iterator[Request]:
    return drawn(dtype=dtype, mask=MASKS[mask], gradient=gradient)


def states(dtype: torch.dtype, mask: str = "none", gradient: bool = False) -> Iterator[Request]:
    return drawn(dtype=dtype, mask=MASKS[mask], state=True, gradient=gradient)


@by_part
@by_served(requests, BACKENDS, every=2, mask=MASKS, dtype=DTYPES)
def test_weights_requested_or_not_give_the_same_bits(backend: str, dtype: torch.dtype, mask: str, whole: bool) -> None:
    for call in calls(backend, dtype, mask, turn=None if whole else list(MASKS).index(mask)):
        output, gradients = call.gradients(backend)
        again, same = call.gradients(backend, attention_with_weights)
        assert same_bits(output, again), call
        assert all(same_bits(x, same[name]) for name, x in gradients.items()), call


@by_served(requests, BACKENDS, every=2, mask=["none", "dense"], dtype=DTYPES)
def test_repeats_give_the_same_bits(backend: str, dtype: torch.dtype, mask: str) -> None:
    for call in calls(backend, dtype, mask):
        output, gradients = call.gradients(backend)
        again, same = call.gradients(backend)
        assert same_bits(output, again), call
        assert all(same_bits(x, same[name]) for name, x in gradients.items()), call


LEADING = {
    "keys without heads": lambda q, k, v: (q, k[:, :1], v[:, :1]),
    "keys of one item": lambda q, k, v: (q, k[:1], v[:1]),
    "keys without dimensions": lambda q, k, v: (q, k[0, 0], v[0, 0]),
    "queries without heads": lambda q, k, v: (q[:, :1], k, v),
    "values alone": lambda q, k, v: (q[:1], k[:1], v),
}
"""Query, key and value of which some lack leading dimensions; zeroing hidden keys gives them some."""


@by_part
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("mask", ["none", "lengths", "dense", "dense per head"])
@pytest.mark.parametrize("leading", LEADING)
def test_the_first_call_has_the_bits_of_later_ones(leading: str, mask: str, gradient: bool, whole: bool) -> None:
    """The first call is checked and planned; later ones are looked up; those in inference mode are neither."""
    turn = [*LEADING].index(leading) + [*MASKS].index(mask)
    for score, normalizer in MECHANISMS if whole else MECHANISMS[turn % 8 :: 8]:
        drawn = Call.draw(score, normalizer, dtype=torch.float32, mask=MASKS[mask])
        tensors = LEADING[leading](*(drawn.leaves[name] for name in ("query", "key", "value")))
        call = drawn.with_leaves(**dict(zip(("query", "key", "value"), tensors, strict=True)))
        call = call.with_leaves(query=call.leaves["query"].detach().requires_grad_(gradient))
        # With grouped heads, parameters of keys are per group.
        per_key_head = score.name.endswith("per_head") and {"key_weight", "key_vector"} & call.leaves.keys()
        for grouped in {False, leading == "keys without heads" and not per_key_head}:
            call = call.with_options(enable_gqa=grouped)
            plan_cache.PLANS.clear()
            first, *later = (call.output("auto").detach() for _ in range(3))
            assert all(same_bits(first, x) for x in later), f"{call}, grouped {grouped}: other bits later"
            assert same_bits(first, call.weights("auto")[0].detach()), f"{call}, grouped {grouped}: with weights"


@by_served(partial(requests, mask="lengths", gradient=False), BACKENDS, dtype=DTYPES)
def test_weights_times_values_are_the_output(backend: str, dtype: torch.dtype) -> None:
    for call in calls(backend, dtype, "lengths", gradient=False):
        output, weights = call.weights(backend)
        assert weights.dtype == output.dtype == dtype, call
        assert near(weights @ call.leaves["value"], output, 16), call


@by_served(partial(states, torch.float64, "lengths"), BACKENDS)
def test_the_state_comes_with_the_same_output(backend: str) -> None:
    """Within the bound: a kernel that also returns its state can be a different one."""
    for call in calls(backend, torch.float64, "lengths", state=True, gradient=False):
        output, state = call.state(backend)
        assert near(output, call.output(backend)), call
        assert state.value.dtype == torch.float64, call


@by_served(states, BACKENDS, dtype=[torch.bfloat16, torch.float16, torch.float32])
def test_states_are_float64(backend: str, dtype: torch.dtype) -> None:
    for call in calls(backend, dtype, "none", state=True, gradient=False):
        assert call.state(backend)[1].value.dtype == torch.float64, call


@by_served(partial(states, torch.float64, "dense"), BACKENDS)
def test_states_agree_with_the_reference(backend: str) -> None:
    for call in calls(backend, torch.float64, "dense", state=True, gradient=False):
        assert near(call.state(backend)[1].value, call.state("reference")[1].value), call


@by_served(partial(states, torch.float64, "dense", gradient=True), [name for name in ON_CPU if name != "reference"])
def test_states_have_the_gradients_of_the_reference(backend: str) -> None:
    for score, normalizer in MECHANISMS:
        call = Call.draw(score, normalizer, dtype=torch.float64, mask=MASKS["dense"])
        if not call.serves(backend, state=True):
            continue
        ours, theirs = (call.gradients(name, _state_value)[1] for name in (backend, "reference"))
        assert all(near(x, theirs[leaf], 4000) for leaf, x in ours.items()), call


def _state_value(*args, **options) -> torch.Tensor:
    value = attention_with_state(*args, **options)[1].value
    return torch.where(value.isinf(), 0.0, value) + 0 * args[0].sum()


SIZES = (((2, 2), 5, 7), ((2, 2), 64, 64), ((1, 2), 256, 256))
MORE = (
    (SCORE["uniform"], NORMALIZER["softmax"]),
    (ScoreCase("wide", lambda p: ScaledDot(), width=128, key_width=128), NORMALIZER["softmax"]),
)
"""Two more mechanisms: one whose operands are narrower than its keys, and one where each item is worth two threads, so
that the thread count selects the algorithm.
"""


def different_calls(whole: bool) -> list[Call]:
    found = []
    for score, normalizer in MORE:
        for sizes in SIZES:
            call = Call.draw(score, normalizer, sizes, torch.float32, score.key_width)
            found += [call, call.with_options(mask=causal())]
    for turn, (score, normalizer) in enumerate(MECHANISMS if whole else MECHANISMS[::4]):
        mask = causal() if turn % 2 else None
        found.append(Call.draw(score, normalizer, SIZES[turn % 2], torch.float32, score.key_width, mask=mask))
    return found


def bits_of(call: Call, threads: int) -> tuple[str, str]:
    """The results of a call without gradients and with them, as short strings."""
    torch.set_num_threads(threads)
    output, gradients = call.gradients("auto")
    return tuple(
        hashlib.sha256(b"".join(x.contiguous().numpy().tobytes() for x in each)).hexdigest()[:16]
        for each in ([call.output("auto")], [output, *gradients.values()])
    )


@pytest.fixture
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def in_turn(order: Sequence[Call], threads: Sequence[int]) -> dict[str, list[tuple[str, str]]]:
    """The bits of every call for one thread count after the other: no call repeats immediately."""
    return {str(count): [bits_of(call, count) for call in order] for count in threads}


@by_part
@pytest.mark.usefixtures("threads_as_before")
def test_the_first_call_and_those_that_follow_give_the_same_bits(whole: bool) -> None:
    """With one thread and with two: a plan cached for one thread count must not serve the other."""
    calls = different_calls(whole)
    plan_cache.PLANS.clear()
    plan._cached_plan.cache_clear()
    first = in_turn(calls, (1, 2))
    again = in_turn(calls, (1, 2))
    for count, expected in first.items():
        wrong = [str(call) for call, x, y in zip(calls, expected, again[count], strict=True) if x != y]
        assert not wrong, count
    plan_cache.PLANS.clear()
    plan._cached_plan.cache_clear()
    for count, bits in in_turn(calls, (2, 1)).items():
        wrong = [str(call) for call, x, y in zip(calls, first[count], bits, strict=True) if x != y]
        assert not wrong, count


_CHILD = """
import json, sys
from tests.contract import test_same_bits as own
print(json.dumps(own.in_turn(own.different_calls(sys.argv[1] == "True")[::-1], (2, 1))))
"""


@by_part
@pytest.mark.usefixtures("threads_as_before")
def test_a_fresh_process_gives_the_same_bits_whatever_comes_first(whole: bool) -> None:
    command = [sys.executable, "-c", _CHILD, str(whole)]
    child = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    found = json.loads(child.stdout.splitlines()[-1])
    for count, bits in in_turn(different_calls(whole), (1, 2)).items():
        assert [tuple(each) for each in found[count][::-1]] == bits, count
