"""The planner takes the fastest algorithm that does not refuse, says why, and never falls back silently."""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.contract.calls import MECHANISMS, Call

from qkv.algorithms.rowwise.short import SHORT_PRODUCTS
from qkv.engine.algorithm import Algorithm
from qkv.engine.problem import Problem
from qkv.errors import UnsupportedError
from qkv.functional import attention, explain
from qkv.masks.patterns import causal, window
from qkv.normalizers.dense import Softmax
from qkv.normalizers.sparse import Sparsemax
from qkv.planner import costs
from qkv.planner import plan as planning
from qkv.planner.plan import AUTO, QUADRATIC_LIMIT, plan_for, refusal
from qkv.planner.registry import ALGORITHMS, BACKENDS
from qkv.scores.free import Uniform
from qkv.scores.kernels import Boxcar, Epanechnikov, Gaussian, SquaredDistance
from qkv.scores.products import ScaledDot
from qkv.scores.sums import Additive


def problem_of(queries: int = 64, keys: int = 64, **options: object) -> Problem:
    shapes = ((1, 2, queries, 16), (1, 2, keys, 16), (1, 2, keys, 16))
    return explain(*(torch.zeros(shape) for shape in shapes), **options).problem  # type: ignore[arg-type]


def test_auto_takes_the_fastest_that_serves() -> None:
    for queries in (4, 64, 1024, 4096):
        problem = problem_of(queries, queries)
        serving = [algorithm for algorithm in ALGORITHMS if refusal(algorithm, problem) is None]
        plan = plan_for(problem)
        assert set(plan.candidates) <= set(serving)
        assert plan.candidates[-1].inspect is None, "one that computes the problem whatever its tensors hold"
        assert all(algorithm.inspect is not None for algorithm in plan.candidates[:-1])
        if len(costs.tables()) == 1 and not any(algorithm.preferred for algorithm in serving):
            predicted = [costs.times(problem, algorithm)[0] for algorithm in serving]
            assert costs.times(problem, plan.candidates[0])[0] == min(predicted)
        for algorithm in serving:
            assert algorithm.name == plan.algorithm or algorithm.name in plan.why


@pytest.mark.kernels
@pytest.mark.parametrize("mask", [None, causal(), window(3, 2)], ids=["all", "causal", "window"])
@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("score", [Boxcar(), Gaussian(), Epanechnikov(), SquaredDistance(), ScaledDot()], ids=repr)
def test_a_small_call_is_one_compiled_call(score: Any, learns: bool, mask: Any) -> None:
    tensors = (torch.randn(1, 4, 16, 64, requires_grad=learns) for _ in range(3))
    normalizer = Sparsemax() if isinstance(score, ScaledDot) else None
    plan = explain(*tensors, score=score, normalizer=normalizer, mask=mask)
    assert plan.algorithm == "rowwise.short"


@pytest.mark.kernels
@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("score", [ScaledDot(), Gaussian()], ids=repr)
@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("queries", [1, 16])
def test_no_other_thread_is_woken_for_a_small_call(score: Any, learns: bool, queries: int) -> None:
    tensors = (torch.randn(1, 4, size, 64, requires_grad=learns) for size in (queries, 16, 16))
    plan = explain(*tensors, score=score)
    assert plan.candidates[0].alone(plan.problem)
    assert "waits for no other thread" in plan.why


@pytest.mark.kernels
@pytest.mark.usefixtures("two_threads")
def test_the_calling_thread_is_not_left_alone_with_much_work() -> None:
    assert explain(*(torch.zeros(1, 8, 256, 64) for _ in range(3))).algorithm == "sdpa.flash"


@pytest.mark.kernels
def test_kernels_that_cannot_run_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of(512, 512, score=Additive(torch.ones(16)))
    kernels = {each: dataclasses.replace(each, kernels=lambda: "no compiler") for each in ALGORITHMS if each.kernels}
    assert plan_for(problem).candidates[0] in kernels
    monkeypatch.setattr(planning, "ALGORITHMS", tuple(kernels.get(each, each) for each in ALGORITHMS))
    planning._cached_plan.cache_clear()
    plan = plan_for(problem)
    assert not any(each.kernels for each in plan.candidates)
    assert dict(plan.refusals)["additive.factored"] == "no compiler"
    planning._cached_plan.cache_clear()


def test_an_unknown_processor_takes_what_loses_least_on_any_known_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest regret over the tables decides, so no table alone."""
    problem = problem_of(512, 512, score=Gaussian())
    serving = [algorithm for algorithm in ALGORITHMS if refusal(algorithm, problem) is None]
    assert len(serving) >= 2
    slow, even = serving[0], serving[1]
    predict({slow.name: (1.0, 4.0), even.name: (1.5, 1.5)}, monkeypatch)
    assert plan_for(problem).algorithm == even.name


def predict(times: dict[str, tuple[float, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the planner predict these microseconds, one for each table, and 100 for all other algorithms."""
    tables = len(next(iter(times.values())))

    def told(problem: Problem, algorithm: Algorithm) -> tuple[float, ...]:
        return times.get(algorithm.name, (100.0,) * tables)

    monkeypatch.setattr(planning, "times", told)
    planning._cached_plan.cache_clear()
    monkeypatch.setattr(planning, "_cached_plan", planning._planned)


@pytest.mark.parametrize(
    ("other", "taken"),
    [
        ((60.0, 60.0), True),
        ((95.0, 60.0), False),
        ((60.0, 140.0), False),
        ((81.0, 50.0), False),  # 1.23 times as fast by one of two tables
        ((76.0,), True),  # the processor's own table
        ((81.0,), False),
    ],
)
def test_a_preferred_algorithm_yields_to_one_that_is_clearly_faster_everywhere(
    other: tuple[float, ...], taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = problem_of(512, 512)
    serving = [algorithm for algorithm in ALGORITHMS if refusal(algorithm, problem) is None]
    preferred = [algorithm.name for algorithm in serving if algorithm.preferred]
    assert len(preferred) == 1
    predict({"tiled.blocked": other}, monkeypatch)
    assert plan_for(problem).algorithm == ("tiled.blocked" if taken else preferred[0])


def test_a_gpu_takes_fused_kernels_first_and_is_told_that_none_has_run_them() -> None:
    for queries in (16, 2048):
        plan = plan_for(problem_of(queries, queries)._replace(device="cuda"))
        assert plan.algorithm == "sdpa.flash"
        assert "no GPU has run it" in plan.why
        assert "predicted" not in plan.why
    assert "no GPU" not in plan_for(problem_of(16, 16)).why


def test_a_window_costs_what_its_blocks_of_rows_see() -> None:
    def predicted(mask: Any) -> float:
        return max(costs.times(problem_of(256, 256, mask=mask), SHORT_PRODUCTS))

    assert predicted(window(4, 4)) < predicted(window(40, 40)) < predicted(window(400, 400))
    assert predicted(window(4, None) & causal()) == predicted(window(4, 0))


@pytest.mark.kernels
def test_calls_of_one_kind_have_plans_of_their_own_windows() -> None:
    tensors = torch.randn(3, 1, 2, 256, 16).unbind()
    for width in (4, 100, 4):
        mask = window(width, width)
        exact = attention(*(x.double() for x in tensors), mask=mask, backend="reference")
        torch.testing.assert_close(attention(*tensors, mask=mask).double(), exact, rtol=1e-4, atol=1e-5)


def test_the_mean_of_all_values_is_not_left_to_a_kernel_for_products() -> None:
    assert plan_for(problem_of(2048, 2048, score=Uniform(), normalizer=Softmax())).algorithm == "matrix.linear"


def test_quadratic_memory_ends_at_the_limit() -> None:
    side = int(QUADRATIC_LIMIT**0.5)
    problem = problem_of(side + 1, side + 1, score=Gaussian())
    plan = plan_for(problem)
    assert not any(algorithm.quadratic for algorithm in plan.candidates)
    assert dict(plan.refusals)["matrix.reference"].startswith("memory grows with Q·K")


@pytest.mark.kernels
def test_a_backend_or_an_algorithm_asked_for_by_name_is_taken() -> None:
    problem = problem_of()
    for algorithm in ALGORITHMS:
        if algorithm.refuses(problem) is None:
            assert plan_for(problem, algorithm.backend).backend == algorithm.backend
            assert plan_for(problem, algorithm.name).candidates == (algorithm,)
            assert plan_for(problem, algorithm.name).why.startswith("requested by name")


@pytest.mark.kernels
def test_numbers_that_rule_out_what_was_asked_for_raise_and_auto_takes_the_next() -> None:
    """Points at a distance that products cannot resolve, on either side of float32's digits."""
    x = torch.tensor([[-1e9], [1e9]]).repeat(20, 8) + torch.arange(40.0)[:, None]
    call = {"score": SquaredDistance(1.0)}
    with pytest.raises(UnsupportedError, match=r"rowwise.*too far"):
        attention(x, x, x, backend="rowwise.distance_rows", **call)  # type: ignore[arg-type]
    expected = attention(x, x, x, backend="reference", **call)  # type: ignore[arg-type]
    torch.testing.assert_close(attention(x, x, x, **call), expected)  # type: ignore[arg-type]


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
            assert any(part in str(caught.value) for part in reason.split("; "))
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
    assert found == plan_for(found.problem)
    assert {name for name, _ in found.refusals} == {each.name for each in ALGORITHMS} - {found.algorithm}
    assert all(reason for _, reason in found.refusals)
    table = str(found)
    for text in ("problem", "backend", "why", "operations", "memory", *(each.name for each in ALGORITHMS)):
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


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: algorithm.name)
def test_work_grows_with_the_problem(algorithm: Algorithm) -> None:
    small, large = (algorithm.work(problem_of(size, size)) for size in (256, 4096))
    for work in (small, large):
        assert work.operations > 0
        assert work.bytes >= 0
        assert all(count >= 0 for count in work.counts.values())
    assert large.operations >= small.operations
    assert all(large.counts.get(kind, 0) >= count for kind, count in small.counts.items() if "in cache" not in kind)


def test_every_table_names_algorithms_that_exist_and_no_negative_coefficient() -> None:
    names = {algorithm.name for algorithm in ALGORITHMS}
    assert costs.all_tables()
    for table in costs.all_tables():
        assert set(table.coefficients) <= names
        for directions in table.coefficients.values():
            assert set(directions) <= {"forward", "with backward"}
            assert all(each >= 0 for kinds in directions.values() for each in kinds.values())


def test_a_processor_is_told_by_vendor_family_model_and_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    own = costs.Processor("GenuineIntel", 6, (143,), "AVX512")
    monkeypatch.setattr(costs, "this_processor", lambda: own)
    assert costs._matches(own)
    assert costs._matches(own._replace(models=(85, 143)))
    assert not costs._matches(own._replace(models=()))
    assert not costs._matches(own._replace(models=(85,)))
    assert not costs._matches(own._replace(capability="AVX2"))
    assert not costs._matches(own._replace(vendor="AuthenticAMD"))


@pytest.fixture
def no_tables_remembered() -> Iterator[None]:
    costs.tables.cache_clear()
    yield
    costs.tables.cache_clear()


@pytest.mark.usefixtures("no_tables_remembered")
@pytest.mark.parametrize("table", costs.all_tables(), ids=lambda table: table.name)
def test_a_table_applies_on_the_models_that_it_names_and_only_there(
    table: costs.CostTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = {*table.processor.models, *range(-1, 256)}
    for model in sorted(models):
        costs.tables.cache_clear()
        monkeypatch.setattr(costs, "this_processor", lambda model=model: table.processor._replace(models=(model,)))
        named = model in table.processor.models
        assert costs.tables() == ((table,) if named else costs.all_tables())


@pytest.mark.usefixtures("no_tables_remembered")
@pytest.mark.parametrize("capability", ["AVX512", "AVX2", "DEFAULT", "SVE256", "NO AVX"])
def test_a_processor_that_the_system_does_not_describe_has_no_table(
    capability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no /proc, or its lines are others, as on 64-bit Arm."""
    monkeypatch.setattr(costs, "this_processor", lambda: costs.Processor("", -1, (-1,), capability))
    assert costs.tables() == costs.all_tables()


def test_one_table_at_least_is_of_each_width_of_registers() -> None:
    """So that on a processor without a table PyTorch's kernel is not left on the word of wide registers alone."""
    assert {table.processor.capability for table in costs.all_tables()} >= {"AVX512", "AVX2"}


def test_no_mechanism_is_named_in_the_planner() -> None:
    from pathlib import Path

    for module in (planning, costs):
        source = Path(str(module.__file__)).read_text(encoding="utf-8").lower()
        for word in ("softmax", "additive", "gaussian", "tanh", "sdpa", "reference_", "causal"):
            assert word not in source


def test_defaults_of_the_normalizer() -> None:
    assert problem_of(score=Boxcar()).normalizer == "sum"
    # In log space.
    assert problem_of(score=Gaussian()).normalizer == "softmax"
    assert problem_of(score=ScaledDot()).normalizer == "softmax"
    assert problem_of(score=Gaussian(), normalizer=Softmax()).normalizer == "softmax"


def test_a_plan_is_remembered_for_its_number_of_threads() -> None:
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 1):
            torch.set_num_threads(threads)
            assert problem_of().threads == threads
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    "own", [(table,) for table in costs.all_tables() if table.processor.models] + [costs.all_tables()]
)
def test_long_plain_dot_products_run_by_pytorchs_kernel(
    own: tuple[costs.CostTable, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was measured to be clearly faster on every processor, at any number of heads.

    With 512 keys and gradients a Zen 4 computes the full matrix 1.3 times as fast on two threads (4 heads: 5.9 against
    7.8 ms), so its own table may say so.
    """
    lengths = (1024, 2048, 4096) if len(own) == 1 else (512, 1024, 2048, 4096)
    monkeypatch.setattr(costs, "tables", lambda: own)
    monkeypatch.setattr(planning, "_cached_plan", planning._planned)
    for heads, keys in itertools.product((1, 4, 16, 64), lengths):
        for mask, learns in itertools.product((None, causal()), (False, True)):
            tensors = [torch.zeros(1, heads, 1, 64).expand(1, heads, keys, 64).requires_grad_(learns) for _ in range(3)]
            assert explain(*tensors, mask=mask).algorithm == "sdpa.flash"
