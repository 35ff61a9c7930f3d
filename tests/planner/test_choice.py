"""The planner takes the cheapest backend that does not refuse, says why, and never falls back silently."""

import dataclasses

import pytest
import torch
from tests.contract.calls import MECHANISMS, Call

from qkv.algorithms.rowwise import rowwise
from qkv.algorithms.sdpa import matmul_tiles
from qkv.engine.problem import Problem
from qkv.errors import UnsupportedError
from qkv.functional import attention, explain
from qkv.masks.patterns import causal
from qkv.normalizers.dense import Softmax
from qkv.planner import choice
from qkv.planner.choice import AUTO, QUADRATIC_LIMIT, choose, plan
from qkv.planner.registry import BACKENDS
from qkv.scores.kernels import Gaussian
from qkv.scores.products import ScaledDot


def problem_of(queries: int = 64, keys: int = 64, **options: object) -> Problem:
    shapes = ((1, 2, queries, 16), (1, 2, keys, 16), (1, 2, keys, 16))
    return explain(*(torch.zeros(shape) for shape in shapes), **options).problem  # type: ignore[arg-type]


def test_auto_takes_the_cheapest_that_serves() -> None:
    for queries in (4, 64, 1024, 4096):
        problem = problem_of(queries, queries)
        within = queries * queries <= QUADRATIC_LIMIT
        serving = {
            name: backend.cost(problem).time
            for name, backend in BACKENDS.items()
            if backend.refuses(problem) is None and (within or not backend.quadratic)
        }
        assert choose(problem) == min(serving, key=lambda name: serving[name])


def test_quadratic_memory_ends_at_the_limit() -> None:
    side = int(QUADRATIC_LIMIT**0.5)
    problem = problem_of(side + 1, side + 1, score=Gaussian())
    assert not BACKENDS[choose(problem)].quadratic
    assert dict(plan(problem).refusals)["reference"].startswith("memory grows with Q·K")


def test_a_backend_asked_for_by_name_is_taken() -> None:
    problem = problem_of()
    for name, backend in BACKENDS.items():
        if backend.refuses(problem) is None:
            assert choose(problem, name) == name
            assert plan(problem, name).why.startswith("asked for by name")


@pytest.mark.parametrize("name", [name for name in BACKENDS if name not in ("reference", "blocked")])
def test_a_backend_that_cannot_serve_says_why(name: str) -> None:
    """Nothing falls back: the reason is the error."""
    refused = 0
    for score, normalizer in MECHANISMS:
        call = Call.draw(score, normalizer, dropout=0.1)
        reason = call.refusal(name)
        if reason is not None:
            refused += 1
            with pytest.raises(UnsupportedError) as caught:
                call.output(name)
            assert reason in str(caught.value)
            assert str(caught.value).startswith("backend: expected one that serves")
            assert 'backend="auto"' in str(caught.value)
    assert refused


def test_an_unknown_backend_is_told_the_nearest() -> None:
    query = torch.zeros(2, 3)
    with pytest.raises(
        UnsupportedError, match=r'backend: expected one of auto, reference.*got \'refrence\'.*"reference"'
    ):
        attention(query, query, query, backend="refrence")


def test_a_plan_is_a_value_and_a_table() -> None:
    query = torch.zeros(1, 2, 8, 16)
    found = explain(query, query, query, mask=causal())
    bare = plan(found.problem)
    assert found == dataclasses.replace(bare, why=found.why)
    assert found.why.startswith(bare.why)
    assert {name for name, _ in found.refusals} == set(BACKENDS) - {found.backend}
    assert all(reason for _, reason in found.refusals)
    table = str(found)
    for text in ("problem", "backend", "why", "operations", "memory", *BACKENDS):
        assert text in table
    assert found.operations > 0


def test_explain_tells_what_runs() -> None:
    """For every mechanism the plan's backend computes the call, and to the same bits as by name."""
    for score, normalizer in MECHANISMS:
        call = Call.draw(score, normalizer)
        tensors = [call.leaves[name] for name in ("query", "key", "value")]
        chosen = explain(*tensors, **call.arguments(call.leaves)).backend
        assert torch.equal(call.output(AUTO), call.output(chosen))


def test_problems_are_values_without_tensors() -> None:
    one, other = problem_of(), problem_of()
    assert one == other
    assert hash(one) == hash(other)
    for name in Problem._fields if hasattr(Problem, "_fields") else [f.name for f in dataclasses.fields(Problem)]:
        assert not isinstance(getattr(one, name), torch.Tensor)


@pytest.mark.parametrize("backend", BACKENDS)
def test_costs_grow_with_the_problem(backend: str) -> None:
    small, large = problem_of(256, 256), problem_of(4096, 4096)
    for problem in (small, large):
        cost = BACKENDS[backend].cost(problem)
        assert cost.operations > 0
        assert cost.time > 0
        assert cost.bytes >= 0
    assert BACKENDS[backend].cost(large).time >= BACKENDS[backend].cost(small).time


def test_names_of_backends_are_their_keys() -> None:
    assert all(name == backend.name for name, backend in BACKENDS.items())


def test_no_mechanism_is_named_in_the_planner() -> None:
    from pathlib import Path

    import qkv.planner.choice

    source = Path(qkv.planner.choice.__file__).read_text(encoding="utf-8")
    assert len(source.splitlines()) < 200
    for word in ("softmax", "additive", "gaussian", "tanh", "sdpa", "reference_", "causal"):
        assert word not in source.lower()


def test_defaults_of_the_normalizer() -> None:
    assert problem_of(score=Gaussian()).normalizer == "sum"
    assert problem_of(score=ScaledDot()).normalizer == "softmax"
    assert problem_of(score=Gaussian(), normalizer=Softmax()).normalizer == "softmax"


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize(
    ("values", "by_mkl", "backend"),
    [(64, False, "sdpa"), (32, False, "sdpa"), (128, False, "rowwise"), (128, True, "sdpa")],
)
def test_values_twice_as_wide_as_keys_are_padded_to_where_products_are_mkls(
    values: int, by_mkl: bool, backend: str, gradient: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rowwise, "mkl_favored", lambda: by_mkl)
    # Elsewhere tiles of `matmul_tiles` are faster than PyTorch's kernel, whatever the width.
    monkeypatch.setattr(matmul_tiles, "_quick", lambda: False)
    choice._remembered.cache_clear()
    query, key = torch.zeros(2, 1, 2, 2048, 64).requires_grad_(gradient).unbind()
    assert explain(query, key, torch.zeros(1, 2, 2048, values)).backend == backend
    choice._remembered.cache_clear()


def test_a_choice_is_remembered_for_its_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, before = problem_of(), torch.get_num_threads()
    monkeypatch.setattr(choice, "_choose", lambda problem, backend: str(torch.get_num_threads()))
    choice._remembered.cache_clear()
    try:
        for threads in (1, 2, 1):
            torch.set_num_threads(threads)
            assert choose(problem) == str(threads)
    finally:
        torch.set_num_threads(before)
        choice._remembered.cache_clear()
