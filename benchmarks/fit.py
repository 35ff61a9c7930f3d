"""Fit the planner's coefficients for this kind of processor: every algorithm on many problems, then least squares.

    python -m benchmarks.fit measure            time every algorithm that serves; keep the times (half an hour)
    python -m benchmarks.fit measure --grid reduced   fewer sizes, in processor time of one thread, for a shared
                                                machine; goes on where an earlier call ended
    python -m benchmarks.fit fit                write src/qkv/planner/coefficients/NAME.json from the times kept
    python -m benchmarks.fit check              regret and prediction on sizes that were not fitted, with a picture;
                                                without a table of this processor: the regret of choosing by the others
    python -m benchmarks.fit scale              write intel-avx512.json: Zen 5's table times a factor per backend

Of an Intel Xeon only the times of whole backends were kept (`results/choices.json`, one thread). `scale` gives each
algorithm of a backend one factor in each direction: the median ratio of those times to what Zen 5's table predicts.
That is wrong for the pass over short sequences, which gains on AMD from MKL's slower products: it is fitted to what is
known of it beside PyTorch's kernel (`results/short-intel-avx512.json`).

A table applies on the models that it names, those in its times. Times without a model, as were kept of the first two
processors, give a table that applies nowhere alone: on other processors all tables vote.

Times are those of one and of two threads, on a machine on which nothing else runs. A coefficient is microseconds of one
thread per unit of work; none is negative, and the sum of squared relative errors is least.
"""

import argparse
import json
import re
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from benchmarks.engine.mechanisms import BANDWIDTH, MECHANISMS, Mechanism, Size
from benchmarks.kept import processor
from numpy.typing import NDArray
from scipy.optimize import lsq_linear
from torch import Tensor

import qkv
import qkv.engine.problem
from qkv.engine.algorithm import Algorithm
from qkv.engine.problem import BiasKind
from qkv.masks.lower import Kind
from qkv.planner import costs
from qkv.planner.plan import QUADRATIC_LIMIT, Plan
from qkv.planner.registry import ALGORITHMS, algorithms_of

RESULTS = Path(__file__).parent / "results"
TABLES = Path(costs.__file__).parent / "coefficients"
DIRECTIONS = ("forward", "with backward")
LONGEST = 0.15
"""Seconds of one call above which an algorithm is timed once."""
MOST_NUMBERS = 1 << 26
"""A full matrix of more numbers than this is not tried."""
PATIENCE = 0.015
"""Seconds that a faster algorithm is timed."""
ROUNDS = 10
"""How often least squares are weighted anew by the predictions."""
BELIEF = 0.1
"""Weight of one coefficient of a similar processor, relative to the weight of one time of this one."""
IN_MEMORY = ("numbers of queries in memory", "numbers of keys in memory")
MOST = {"forward": 0.01, "with backward": 0.03}
"""The most microseconds that a number read from memory may cost: 4 bytes at 0.4 GB/s, three times with backward.

Few times decide these coefficients. Without a limit, least squares would explain other errors by them, and problems of
more heads than were timed would be predicted at several times their time.
"""
LEAST = {"forward": 4e-6, "with backward": 1.2e-5}
"""The least microseconds of a floating-point operation, with the two products of the backward pass: 250 GFlop/s.

No core that was measured is faster. Without a limit, least squares would explain the products of small problems by
their pairs, and take those of large ones for free.
"""
SIMILAR = {
    "amd-zen3-avx2": "amd-zen4-avx512",
    "amd-zen4-avx512": "amd-zen5-avx512",
    "amd-zen5-avx512": "amd-zen4-avx512",
}
"""Whose table decides what the times of a processor leave open."""
SLOW = 12.0
"""An algorithm that takes so many times as long as the best one is timed once."""
SLOW_SIZES = 2
"""After so many sizes at which it was slow it is not timed: from fewer, least squares would take its work for free."""


class Grid(NamedTuple):
    """Sizes of problems.

    Attributes:
        all: those of every variant.
        plain: further ones, without masks and in float32.
        dot: further ones, of plain and causal dot products in float32.
        threads: how many threads each problem is timed with.
        clock: returns seconds.
    """

    all: tuple[Size, ...]
    plain: tuple[Size, ...]
    dot: tuple[Size, ...] = ()
    threads: tuple[int, ...] = (1, 2)
    clock: Callable[[], float] = time.perf_counter


def _heads(n: int, width: int = 64, value: int = 64) -> Size:
    return Size((1, 8), n, n, width, value)


NARROW = tuple(Size((batch, 4), n, n, 16, 16) for batch in (1, 4, 16) for n in (16, 48, 128))
"""Heads of small models, whose pairs take longer than their products."""
SQUARE = tuple(
    Size((1, heads), n, n, 64, 64)
    for n in (64, 128, 256, 512, 1024, 2048)
    for heads in (1, 4, 16, 64)
    if heads * n * n <= 1 << 22
)
FITTED = Grid(
    (_heads(16), _heads(64), _heads(256), _heads(512), _heads(1024), Size((16, 8), 4, 128, 64, 64)),
    (
        Size((16, 8), 24, 24, 64, 64),
        Size((12, 4), 64, 64, 32, 32),
        Size((64, 4), 16, 16, 64, 64),
        Size((64, 8), 1, 128, 64, 64),
        Size((1, 2), 2048, 2048, 64, 64),
        Size((1, 4), 300, 300, 128, 128),
        Size((64,), 1, 50, 256, 256),
        Size((64,), 20, 20, 256, 256),
        Size((16, 8), 1, 512, 64, 64),
        Size((1,), 1000, 1000, 8, 8),
    ),
    (*SQUARE, *NARROW),
)
REDUCED = Grid(
    (_heads(64), _heads(256)),
    (_heads(16), Size((64, 8), 1, 128, 64, 64), Size((64,), 1, 50, 256, 256)),
    (*SQUARE, *NARROW),
    (1,),
    time.process_time,
)
GRIDS = {"full": FITTED, "reduced": REDUCED}
HELD_OUT = Grid(
    (_heads(24), _heads(100), _heads(384)),
    (
        Size((4, 8), 48, 48, 64, 64),
        Size((2, 4), 700, 700, 48, 48),
        Size((120,), 1, 17, 256, 512),
        Size((32, 8), 1, 200, 64, 64),
        Size((1,), 600, 600, 16, 16),
    ),
)
SCALED = "amd-zen5-avx512"
"""The table that Intel's is scaled from."""
ON_A_LINE = ("boxcar_line", "epanechnikov_line")
GROUPED = "grouped"
"""Scaled dot products whose keys and values have half as many heads."""


def _under(rule: Any, mechanism: Mechanism) -> Mechanism:
    return replace(mechanism, given=lambda *parameters: {**mechanism.given(*parameters), "normalizer": rule})


_DISTANCE = {"score": qkv.scores.SquaredDistance(BANDWIDTH["gaussian"])}
_TRIANGLE = {"score": qkv.scores.Epanechnikov(BANDWIDTH["epanechnikov"], power=1)}
_RULES = [getattr(qkv.normalizers, name)() for name in ("Identity", "Mean", "Sigmoid", "Hard", "Sparsemax", "Entmax")]
COMBINED = {
    **{
        f"{score} under {type(rule).__name__}": _under(rule, MECHANISMS[score])
        for score in ("projected", "concat", "squared_distance")
        for rule in _RULES
    },
    "triangle": replace(MECHANISMS["epanechnikov"], given=lambda: _TRIANGLE),
    "projected with dropout": replace(MECHANISMS["projected"], dropout=0.1),
    "squared_distance with dropout": replace(MECHANISMS["squared_distance"], dropout=0.1),
    "squared_distance with bias": replace(MECHANISMS["learned_bias"], given=lambda bias: {**_DISTANCE, "bias": bias}),
}
"""Cores with normalizers and conditions that `MECHANISMS` has for dot products alone; of `full` nothing is used."""
TIMED = {**MECHANISMS, **COMBINED}


class Variant(NamedTuple):
    """A mechanism with a mask and a dtype.

    Attributes:
        mechanism: a key of `TIMED`, or `GROUPED`.
        mask: of `MASKS`.
        dtype: of queries, keys and values.
    """

    mechanism: str
    mask: str = "all"
    dtype: torch.dtype = torch.float32

    def described(self) -> dict[str, str]:
        """Return the three as text."""
        return {"mechanism": self.mechanism, "mask": self.mask, "dtype": str(self.dtype).removeprefix("torch.")}

    def __str__(self) -> str:
        return " ".join(self.described().values())


def _lengths(size: Size) -> Any:
    generator = torch.Generator().manual_seed(0)
    least = max(1, size.keys // 2)
    return qkv.masks.lengths(torch.randint(least, size.keys + 1, size.leading[:1], generator=generator))


MASKS: dict[str, Callable[[Size], Any]] = {
    "all": lambda size: None,
    "causal": lambda size: qkv.masks.causal(),
    "lengths": _lengths,
    "window": lambda size: qkv.masks.window(size.keys // 8, size.keys // 8),
    "dense": lambda size: torch.rand(size.queries, size.keys, generator=torch.Generator().manual_seed(0)) < 0.7,
}
_PLAIN = tuple(name for name in MECHANISMS if name != "causal")
_IN_FLOAT64 = "scaled_dot", "additive", "gaussian", "identity", "mean", "sigmoid", "hard", "sparsemax", "entmax"
VARIANTS = (
    *(Variant(name) for name in _PLAIN),
    *(Variant(name, mask) for name in ("scaled_dot", "projected", "gaussian", "sink") for mask in list(MASKS)[1:]),
    *(
        Variant(name, "causal")
        for name in ("alibi", "dropout", "softcap", "boxcar", "entmax", "concat_leaky", "identity", "hard")
    ),
    *(
        Variant(name, "lengths")
        for name in ("dropout", "sparsemax", "epanechnikov", "concat", "mean", "sigmoid", "hard")
    ),
    *(Variant(GROUPED, mask) for mask in ("all", "causal", "lengths")),
    *(Variant(name, "all", torch.float64) for name in _IN_FLOAT64),
    *(Variant(name, "all", torch.bfloat16) for name in ("scaled_dot", "softcap", "gaussian")),
    Variant("scaled_dot", "causal", torch.bfloat16),
    *map(Variant, COMBINED),
)


class Problem(NamedTuple):
    """A problem with its tensors.

    Attributes:
        name: for people.
        variant: its mechanism, mask and dtype.
        options: of `qkv.attention`, `backend` excepted.
        tensors: query, key and value.
        leaves: what gets a gradient.
        upstream: the gradient of the output.
        size: its sizes.
    """

    name: str
    variant: Variant
    options: dict[str, Any]
    tensors: tuple[Tensor, ...]
    leaves: list[Tensor]
    upstream: Tensor
    size: Size

    def call(self, backend: str) -> Callable[[], object]:
        """Return a call of one algorithm, with its backward pass where anything has a gradient."""
        if not self.leaves:
            return lambda: qkv.attention(*self.tensors, backend=backend, **self.options)

        def both() -> object:
            output = qkv.attention(*self.tensors, backend=backend, **self.options)
            return torch.autograd.grad(output, self.leaves, self.upstream, allow_unused=True)

        return both

    def plan(self) -> Plan:
        """Return what the planner would do."""
        return qkv.explain(*self.tensors, **self.options)

    def described(self) -> str:
        """Return the problem as JSON, the beginning of its rows."""
        size = [list(self.size.leading), *self.size[1:]]
        return json.dumps({**self.variant.described(), "size": size, "direction": DIRECTIONS[bool(self.leaves)]})


def make(variant: Variant, size: Size, direction: str) -> Problem:
    """Draw a problem from a fixed seed."""
    torch.manual_seed(0)
    grouped = variant.mechanism == GROUPED
    mechanism = TIMED["scaled_dot" if grouped else variant.mechanism]
    gradient = direction == DIRECTIONS[1]
    shared = (*size.leading[:-1], size.leading[-1] // 2) if grouped else size.leading
    shapes = (size.queries, size.width), (size.keys, size.width), (size.keys, size.value_width)
    tensors = tuple(
        torch.randn(*heads, *shape, dtype=variant.dtype)
        for heads, shape in zip((size.leading, shared, shared), shapes, strict=True)
    )
    drawn = [x.detach().to(variant.dtype) if x.is_floating_point() else x for x in mechanism.parameters(size)]
    leaves = [x.requires_grad_() for x in (*tensors, *drawn) if x.is_floating_point()] if gradient else []
    options = {"mask": MASKS[variant.mask](size), "dropout": mechanism.dropout, **mechanism.given(*drawn)}
    options |= {"enable_gqa": True} if grouped else {}
    upstream = torch.randn(*size.leading, size.queries, size.value_width, dtype=variant.dtype)
    return Problem(f"{variant}, {size}, {direction}", variant, options, tensors, leaves, upstream, size)


DOT = (Variant("scaled_dot"), Variant("scaled_dot", "causal"))


def problems(grid: Grid) -> Iterator[Problem]:
    """Every variant at every size and in both directions; dot products first."""
    for variant in DOT:
        for size in grid.dot:
            for direction in DIRECTIONS:
                yield make(variant, size, direction)
    for variant in VARIANTS:
        line = variant.mechanism in ON_A_LINE
        sizes = (*grid.all, *grid.plain) if variant in map(Variant, MECHANISMS) else grid.all
        if variant.mechanism in ("learned_bias", "squared_distance with bias", GROUPED):
            sizes = tuple(size for size in sizes if len(size.leading) > 1)
        for size in sizes:
            for direction in DIRECTIONS:
                yield make(variant, size._replace(width=1) if line else size, direction)


def timed(run: Callable[[], object], clock: Callable[[], float]) -> float:
    """Return the microseconds of a call: the fastest of several turns, which other processes disturb least."""
    start = clock()
    run()
    first = clock() - start
    if first > LONGEST:
        return first * 1e6
    inner = max(1, int(0.001 / max(first, 1e-7)))
    found, end = [first], clock() + PATIENCE
    while len(found) < 4 or (clock() < end and len(found) < 25):
        start = clock()
        for _ in range(inner):
            run()
        found.append((clock() - start) / inner)
    return min(found) * 1e6


def measure(grid: Grid, only: str, measured: Collection[str] = ()) -> Iterator[list[dict[str, Any]]]:
    """Time every algorithm that serves each problem; yield the rows of each problem.

    Args:
        grid: the sizes.
        only: part of the names of the problems.
        measured: problems to leave out, as `described` returns them.
    """
    slow: Counter[tuple[str, str]] = Counter()
    for problem in problems(grid):
        if only not in problem.name or problem.described() in measured:
            continue
        rows: list[dict[str, Any]] = []
        for threads in grid.threads:
            torch.set_num_threads(threads)
            rows += _measure(problem, threads, slow, grid.clock)
        print(f"{problem.name}: {rows[-1]['algorithm']} {rows[-1]['us']:.0f} us", flush=True)
        yield rows


def _measure(
    problem: Problem, threads: int, slow: Counter[tuple[str, str]], clock: Callable[[], float]
) -> list[dict[str, Any]]:
    plan = problem.plan()
    serving = [algorithm for algorithm in ALGORITHMS if _worth_timing(algorithm, plan.problem)]
    kind, found = f"{problem.variant} {bool(problem.leaves)} {threads}", dict[str, float]()
    for algorithm in serving:
        if slow[algorithm.name, kind] >= SLOW_SIZES and algorithm.name != plan.algorithm:
            continue
        run = problem.call(algorithm.name)
        try:
            run()
        except qkv.errors.UnsupportedError:
            continue
        start = clock()
        run()
        first = (clock() - start) * 1e6
        if found and first > SLOW * min(found.values()):
            slow[algorithm.name, kind] += 1
            found[algorithm.name] = first
        else:
            found[algorithm.name] = timed(run, clock)
    own = {**json.loads(problem.described()), "threads": threads}
    (model,) = costs.this_processor().models
    return [{**own, "algorithm": name, "us": round(us, 2), "model": model} for name, us in found.items()]


def counted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with the work of each algorithm, and over how many threads it spreads."""
    known: dict[str, tuple[str, qkv.engine.problem.Problem]] = {}
    found = []
    for row in rows:
        place = json.dumps([row[name] for name in ("mechanism", "mask", "dtype", "size", "direction")])
        if place not in known:
            variant = Variant(row["mechanism"], row["mask"], getattr(torch, row["dtype"]))
            size = Size(tuple(row["size"][0]), *row["size"][1:])
            problem = make(variant, size, row["direction"])
            known[place] = problem.name, problem.plan().problem
        name, described = known[place]
        counts = {kind: count for kind, count in _work(row["algorithm"], described).items() if count}
        parallel = min(row["threads"], described.rows * described.queries)
        found.append({**row, "problem": name, "counts": counts, "parallel": parallel})
    return found


def planned(own: list[dict[str, Any]]) -> str:
    """Return the algorithm that the planner takes for a problem, given its rows."""
    row = own[0]
    torch.set_num_threads(row["threads"])
    variant = Variant(row["mechanism"], row["mask"], getattr(torch, row["dtype"]))
    plan = make(variant, Size(tuple(row["size"][0]), *row["size"][1:]), row["direction"]).plan()
    return str(plan.algorithm)


def _work(name: str, problem: qkv.engine.problem.Problem) -> Mapping[str, float]:
    return costs.counts_of(problem, algorithms_of(name)[0])


def _worth_timing(algorithm: Algorithm, problem: qkv.engine.problem.Problem) -> bool:
    """Return whether the planner could take an algorithm, or nearly so."""
    if algorithm.refuses(problem) is not None:
        return False
    depth = problem.width if problem.core in ("tanh_sum", "distance") else 1
    pairs = problem.queries * problem.keys
    return not algorithm.quadratic or (pairs <= QUADRATIC_LIMIT and pairs * problem.rows * depth <= MOST_NUMBERS)


def fit(rows: list[dict[str, Any]], similar: costs.Coefficients) -> costs.Coefficients:
    """Return the coefficients whose predictions have the least squared relative error.

    Args:
        rows: the times, with their counts.
        similar: the coefficients of another processor, which decide what these times leave open.
    """
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["algorithm"], row["direction"]].append(row)
    found: costs.Coefficients = {}
    for (algorithm, direction), own in sorted(groups.items()):
        expected = similar.get(algorithm, {}).get(direction, {})
        found.setdefault(algorithm, {})[direction] = _least_squares(own, expected, direction)
    return found


def _least_squares(rows: list[dict[str, Any]], similar: Mapping[str, float], direction: str) -> dict[str, float]:
    """Fit one algorithm in one direction, within the limits `LEAST` and `MOST`.

    A slow algorithm is timed at few sizes. Without `similar`, least squares would explain such times by the number of
    calls and take the work that grows with the size for free.
    """
    kinds = [costs.START, *sorted({kind for row in rows for kind in row["counts"]} | set(similar) - {costs.START})]
    counts = [{costs.START: 1.0, **{kind: n / row["parallel"] for kind, n in row["counts"].items()}} for row in rows]
    matrix = np.array([[own.get(kind, 0.0) for kind in kinds] for own in counts])
    times = np.array([row["us"] for row in rows])
    expected = np.array([similar.get(kind, 0.0) for kind in kinds])
    known = matrix @ expected
    expected *= np.median(times[known > 0] / known[known > 0]) if known.any() else 1.0
    believed = np.diag(np.divide(BELIEF, expected, out=np.zeros_like(expected), where=expected > 0))
    least = np.array([LEAST[direction] if kind == "operations" else 0.0 for kind in kinds])
    most = np.array([MOST[direction] if kind in IN_MEMORY else np.inf for kind in kinds])
    expected = np.clip(expected, least, most)
    predictions = times
    for _ in range(ROUNDS):
        # Errors relative to the geometric mean of both: half and twice the time count alike.
        scale = np.sqrt(times * np.maximum(predictions, times / 100))
        weighted: NDArray[np.float64] = np.concatenate([matrix / scale[:, None], believed])
        wanted = np.concatenate([times / scale, np.where(expected > 0, BELIEF, 0.0)])
        largest = np.abs(weighted).max(0)
        largest[largest == 0] = 1.0
        solution = lsq_linear(weighted / largest, wanted, (least * largest, most * largest), method="bvls").x
        values = np.maximum(solution / largest, least)
        predictions = matrix @ values
    return {kind: float(f"{value:.4g}") for kind, value in zip(kinds, values, strict=True)}


def completed(
    found: costs.Coefficients, similar: costs.Coefficients, rows: list[dict[str, Any]]
) -> tuple[costs.Coefficients, list[str]]:
    """Add the algorithms that were not timed, from a similar processor's table times one factor.

    Returns:
        All coefficients, and what was added.
    """
    ratios = [
        row["us"] / expected
        for row in rows
        if (expected := _predicted(row["counts"], similar.get(row["algorithm"], {}).get(row["direction"], {})))
    ]
    factor, complete, added = statistics.median(ratios), dict(found), []
    for algorithm, directions in similar.items():
        for direction, own in directions.items():
            if direction not in found.get(algorithm, {}):
                scaled_own = {kind: float(f"{each * factor:.4g}") for kind, each in own.items()}
                complete[algorithm] = {**complete.get(algorithm, {}), direction: scaled_own}
                added.append(f"{algorithm}, {direction}")
    return dict(sorted(complete.items())), sorted(added)


def kinds_of_work() -> dict[tuple[str, str], set[str]]:
    """Return every kind of work that an algorithm can count in a direction, over problems of every description."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for problem in _descriptions():
        for algorithm in ALGORITHMS:
            if algorithm.refuses(problem) is None:
                counts = costs.counts_of(problem, algorithm)
                found[algorithm.name, DIRECTIONS[problem.gradient]] |= {kind for kind, n in counts.items() if n}
    return found


def _descriptions() -> Iterator[qkv.engine.problem.Problem]:
    flags, dtypes = (False, True), (torch.float32, torch.float64, torch.bfloat16)
    masks: tuple[Kind, ...] = get_args(Kind)
    biases: tuple[BiasKind, ...] = ("none", "fixed", "relative")
    for mechanism, size in product((*TIMED, GROUPED), (_heads(4), Size((1, 8), 1, 512, 64, 64), _heads(1024))):
        narrow = size._replace(width=1) if mechanism in ON_A_LINE else size
        problem = make(Variant(mechanism), narrow, DIRECTIONS[0]).plan().problem
        for mask, bias, dtype in product(masks, biases, dtypes):
            for dropout, gradient in product({problem.dropout, True}, flags):
                yield problem._replace(mask=mask, bias=bias, dtype=dtype, dropout=dropout, gradient=gradient)


def filled(table: costs.Coefficients) -> costs.Coefficients:
    """Return a table in which no work is free because it was not timed: it costs what it costs at most elsewhere.

    The planner would otherwise take an algorithm just because nobody timed what it does.

    Raises:
        ValueError: no algorithm was timed at some work; a variant that does it is missing.
    """
    complete = {name: {direction: dict(own) for direction, own in each.items()} for name, each in table.items()}
    for (name, direction), kinds in kinds_of_work().items():
        own = complete.get(name, {}).get(direction, {})
        for kind in sorted(kinds - set(own)) if own else ():
            elsewhere = [each[direction][kind] for each in table.values() if kind in each.get(direction, {})]
            if not elsewhere:
                raise ValueError(f"{kind}, {direction}: expected a variant whose algorithms do it; got none")
            own[kind] = max(elsewhere)
    return complete


def models_of(rows: list[dict[str, Any]]) -> tuple[int, ...]:
    """Return the models of processors that times were measured on; none if one of them is not on record."""
    models = {row.get("model", -1) for row in rows}
    return () if -1 in models else tuple(sorted(models))


def write(coefficients: costs.Coefficients, name: str, processor: costs.Processor, measured: dict[str, Any]) -> None:
    """Write a table of coefficients, with what they come from. It applies on the models that it names."""
    described = {
        "vendor": processor.vendor,
        "family": processor.family,
        "models": list(processor.models),
        "capability": processor.capability,
    }
    table = {
        "name": name,
        "processor": described,
        "measured": measured,
        "torch": torch.__version__,
        "algorithms": coefficients,
    }
    TABLES.mkdir(exist_ok=True)
    (TABLES / f"{name}.json").write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


def scaled(table: costs.Coefficients, rows: list[dict[str, Any]], untimed: Collection[str]) -> costs.Coefficients:
    """Return a table for a processor on which only backends were timed.

    Args:
        table: the coefficients of another processor.
        rows: of `results/choices.json`: mechanism, size, pass, and milliseconds of each backend on one thread.
        untimed: names of algorithms that the table does not have from times of its own: they are newer than the rows.
    """
    ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        problem = _described(row)
        for backend, ms in row["ms"].items():
            direction = DIRECTIONS[row["pass"] != "forward"]
            predictions = [
                _predicted(algorithm.work(problem).counts, table[algorithm.name][direction])
                for algorithm in algorithms_of(backend)
                if algorithm.refuses(problem) is None
                and direction in table.get(algorithm.name, {})
                and algorithm.name not in untimed
            ]
            if predictions:
                ratios[backend, direction].append(1000 * ms / min(predictions))
    factors = {place: statistics.median(own) for place, own in ratios.items()}
    usual = statistics.median(factors.values())
    backends = {algorithm.name: algorithm.backend for algorithm in ALGORITHMS}
    return {
        name: {
            direction: {
                kind: float(f"{each * factors.get((backends[name], direction), usual):.4g}")
                for kind, each in own.items()
            }
            for direction, own in directions.items()
        }
        for name, directions in table.items()
    }


def corrected(table: costs.Coefficients, known: list[dict[str, Any]]) -> costs.Coefficients:
    """Return a table in which algorithms are fitted to measured ratios to others.

    Args:
        table: the coefficients.
        known: measured ratios: the problem, an algorithm, another, and how many times as fast as that it was.
    """
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in known:
        problem = make(Variant(row["mechanism"], row["mask"]), Size(*row["size"]), row["direction"]).plan().problem
        parallel = min(row["threads"], problem.rows * problem.queries)
        counts = {name: dict(_work(name, problem)) for name in (row["algorithm"], row["against"])}
        theirs = {kind: count / parallel for kind, count in counts[row["against"]].items()}
        us = _predicted(theirs, table[row["against"]][row["direction"]]) / row["times as fast"]
        own = {"us": us, "counts": counts[row["algorithm"]], "parallel": parallel}
        groups[row["algorithm"], row["direction"]].append(own)
    found = {name: dict(directions) for name, directions in table.items()}
    for (name, direction), rows in groups.items():
        found[name][direction] = _least_squares(rows, table[name][direction], direction)
    return found


def _problem_of(row: dict[str, Any]) -> str:
    return json.dumps({name: row[name] for name in ("mechanism", "mask", "dtype", "size", "direction")})


def _described(row: dict[str, Any]) -> qkv.engine.problem.Problem:
    """Return the problem of a row of `results/choices.json`, for one thread."""
    left, queries, keys, widths = re.fullmatch(
        r"(.*) × ([\d,]+) queries × ([\d,]+) keys, widths (\d+ and \d+)", row["size"]
    ).groups()  # type: ignore[union-attr]
    leading = tuple(int(part) for part in left.split(" × "))
    width, value = (int(part) for part in widths.split(" and "))
    size = Size(leading, int(queries.replace(",", "")), int(keys.replace(",", "")), width, value)
    mask = "causal" if row["mechanism"] == "causal" else "all"
    mechanism = "scaled_dot" if row["mechanism"] == "causal" else row["mechanism"]
    torch.set_num_threads(1)
    return make(Variant(mechanism, mask), size, DIRECTIONS[row["pass"] != "forward"]).plan().problem


def _predicted(counts: Mapping[str, float], own: Mapping[str, float]) -> float:
    return own.get(costs.START, 0.0) + sum(own.get(kind, 0.0) * count for kind, count in counts.items())


def regrets(rows: list[dict[str, Any]], choose: Callable[[list[dict[str, Any]]], str]) -> list[tuple[float, str]]:
    """Return the chosen algorithm's time over the least, for each problem and number of threads."""
    groups: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["problem"], row["threads"]].append(row)
    found = []
    for (name, threads), own in groups.items():
        chosen, times = choose(own), {row["algorithm"]: row["us"] for row in own}
        best = min(times, key=times.__getitem__)
        # What was not timed took more than SLOW times as long at a smaller size.
        taken = times.get(chosen, SLOW * times[best])
        said = f"{name}, {threads} threads: {chosen} {taken:.0f} us, best {best} {times[best]:.0f}"
        found.append((taken / times[best], said))
    return sorted(found, reverse=True)


def predicted(row: dict[str, Any], coefficients: costs.Coefficients) -> float:
    """Return the microseconds that a table predicts for a row."""
    own = coefficients[row["algorithm"]][row["direction"]]
    counts = {kind: count / row["parallel"] for kind, count in row["counts"].items()}
    return _predicted(counts, own)


def cheapest(own: list[dict[str, Any]], coefficients: costs.Coefficients) -> str:
    """Return the algorithm with the least predicted time among those that were timed."""
    return str(min(own, key=lambda row: predicted(row, coefficients))["algorithm"])


def report(
    rows: list[dict[str, Any]], coefficients: costs.Coefficients, choose: Callable[[list[dict[str, Any]]], str]
) -> None:
    """Print regret and errors of predictions."""
    known = [row for row in rows if row["direction"] in coefficients.get(row["algorithm"], {})]
    found = regrets(known, choose)
    values = [regret for regret, _ in found]
    errors = [abs(np.log(predicted(row, coefficients) / row["us"])) for row in known]
    within = sum(value <= 1.25 for value in values) / len(values)
    print(f"{len(values)} problems: regret {statistics.mean(values):.3f} in the mean, {max(values):.2f} at most,")
    print(f"{within:.1%} at most 1.25; predictions off by {np.exp(np.median(errors)):.2f} in the median")
    for regret, said in found[:25]:
        print(f"{regret:6.2f}  {said}")


def picture(rows: list[dict[str, Any]], coefficients: costs.Coefficients, path: Path) -> None:
    """Draw predicted against measured times, one color per family."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 6))
    families: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        if row["direction"] in coefficients.get(row["algorithm"], {}):
            families[row["algorithm"]].append((row["us"], predicted(row, coefficients)))
    for name, points in sorted(families.items()):
        measured, expected = zip(*points, strict=True)
        axes.scatter(measured, expected, s=8, label=name, alpha=0.7)
    ends = (10, 1e6)
    axes.plot(ends, ends, color="gray", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="measured, µs", ylabel="predicted, µs")
    axes.legend(fontsize=6, ncols=2)
    figure.savefig(path, bbox_inches="tight")


def kept(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file, one for each time of an algorithm that there still is.

    The file has a line for each mechanism and size.
    """
    lines: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return [
        {**line, "direction": direction, "threads": int(threads), "algorithm": algorithm, "us": us}
        for line in lines
        for direction, by_threads in line.pop("us").items()
        for threads, by_algorithm in by_threads.items()
        for algorithm, us in by_algorithm.items()
        if algorithms_of(algorithm)
    ]


def keep(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows in place of those of the same problems."""

    def place(row: dict[str, Any]) -> str:
        return json.dumps([row[name] for name in ("mechanism", "mask", "dtype", "size", "direction", "threads")])

    measured = {place(row) for row in rows}
    lines: dict[str, dict[str, Any]] = {}
    for row in [row for row in kept(path) if place(row) not in measured] + rows:
        line = {name: x for name, x in row.items() if name not in ("direction", "threads", "algorithm", "us")}
        times = lines.setdefault(json.dumps(line), {**line, "us": {}})["us"]
        times.setdefault(row["direction"], {}).setdefault(str(row["threads"]), {})[row["algorithm"]] = row["us"]
    path.write_text("[\n" + ",\n".join(map(json.dumps, lines.values())) + "\n]\n", encoding="utf-8")


def main() -> None:
    """Measure, fit, check or scale."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", default="check", choices=("measure", "fit", "check", "scale"))
    parser.add_argument("--only", default="", help="measure problems whose name holds this text")
    parser.add_argument("--grid", default="full", choices=GRIDS, help="the sizes that are measured")
    parser.add_argument("--of", default=processor(), help="fit the times kept of another processor")
    given = parser.parse_args()
    name = given.of
    fitted, held = RESULTS / f"fit-{name}.json", RESULTS / f"fit-{name}-held-out.json"
    match given.what:
        case "measure":
            known = {_problem_of(row) for row in kept(fitted)} if given.grid == "reduced" else set()
            for rows in measure(GRIDS[given.grid], given.only, known):
                keep(fitted, rows)
        case "fit":
            rows = counted(kept(fitted))
            tables = {table.name: table for table in costs.all_tables()}
            similar = tables[SIMILAR.get(name, SCALED)]
            found, added = completed(fit(rows, similar.coefficients), similar.coefficients, rows)
            found = filled(found)
            kind = tables[name].processor if name in tables else costs.this_processor()
            clock = "processor time" if GRIDS[given.grid].clock is time.process_time else "wall time"
            threads = sorted({row["threads"] for row in rows})
            origin = {"grid": given.grid, "clock": clock, "threads": threads, "times": len(rows)}
            scaled_from = {"scaled from": similar.name, "not timed here": added} if added else {}
            write(found, name, kind._replace(models=models_of(rows)), {**origin, **scaled_from})
            report(rows, found, partial(cheapest, coefficients=found))
        case "scale":
            stored = json.loads((TABLES / f"{SCALED}.json").read_text(encoding="utf-8"))
            table, untimed = stored["algorithms"], {name.split(",")[0] for name in stored["measured"]["not timed here"]}
            rows = json.loads((RESULTS / "choices.json").read_text(encoding="utf-8"))
            origin = {"scaled from": SCALED, "times": len(rows), "of": "whole backends, on one thread"}
            found = corrected(
                scaled(table, rows, untimed),
                json.loads((RESULTS / "short-intel-avx512.json").read_text(encoding="utf-8")),
            )
            write(found, "intel-avx512", costs.Processor("GenuineIntel", 6, (), "AVX512"), origin)
        case _:
            for rows in measure(HELD_OUT, given.only):
                keep(held, rows)
            tables = {table.name: table for table in costs.all_tables()}
            # A processor without a table of its own is judged by what the planner takes; predictions are another's.
            coefficients = tables[name if name in tables else SCALED].coefficients
            rows = counted(kept(held))
            report(rows, coefficients, planned if name == processor() else partial(cheapest, coefficients=coefficients))
            if name in tables:
                picture(rows, coefficients, RESULTS / f"fit-{name}.svg")


if __name__ == "__main__":
    main()
