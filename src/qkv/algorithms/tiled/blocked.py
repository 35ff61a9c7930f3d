"""Backend `blocked`: computes every problem, forward and backward, in memory linear in queries and keys."""

from functools import partial

from torch import Tensor

from qkv.algorithms.tiled import operators, user_scores
from qkv.algorithms.tiled.cores import CORES, FEW_QUERIES
from qkv.algorithms.tiled.position_tiles import PositionTiles
from qkv.algorithms.tiled.stripes import Stripes
from qkv.algorithms.tiled.tile_function import TiledProblem, attend
from qkv.engine.algorithm import Algorithm, Facts, Result, Work
from qkv.engine.mechanism import prepare_inputs
from qkv.engine.position_bias import PositionBias
from qkv.engine.problem import Call, Problem, core_text, first_reason
from qkv.engine.tiles import RESIDENT
from qkv.engine.unchanged import Reads
from qkv.engine.work import (
    is_hidden,
    memory_traffic,
    normalizing,
    pairs_of,
    passes,
    product_operations,
    spreading,
)


def refuses(problem: Problem) -> str | None:
    """Accept every core that PyTorch operators compute tile by tile; refuse user-defined functions and tracing."""
    return first_reason(
        (problem.core not in CORES, _no_core(problem)),
        (problem.bias == "positions closure", "the bias may close over tensors that learn"),
        (_traced(problem), "the tiles are an autograd function for eager calls"),
    )


def _traced(problem: Problem) -> bool:
    """Return whether tensors hold no numbers that could say which tiles are visible."""
    return problem.mode in ("transformed", "compiled") or problem.device == "meta"


def _no_core(problem: Problem) -> str:
    return "scores are user-defined" if problem.core == "tile" else f"no tiles for {core_text(problem.core)}"


def _by_equation(problem: Problem) -> bool:
    """Return whether a traced call needs the equation on stripes, because an operator cannot take a Python function."""
    return problem.core == "tile" or problem.bias_by_tile or (problem.positional and problem.forward_mode)


def _refuses_traced(problem: Problem) -> str | None:
    return first_reason(
        (_by_equation(problem), "scores or biases are user-defined functions"),
        (problem.core not in CORES, _no_core(problem)),
        (not _traced(problem), "eager calls do not need a registered operator"),
        (problem.forward_mode, "tiles have no forward-mode derivative; reference has one"),
    )


def _refuses_user_scores(problem: Problem) -> str | None:
    learns = problem.core == "tile" or problem.bias == "positions closure"
    return first_reason(
        (not learns, "neither scores nor biases are user-defined functions that may learn"),
        (_traced(problem), "the call is traced"),
    )


def _refuses_traced_user_scores(problem: Problem) -> str | None:
    stores_all = "under torch.func tiles of a user-defined function are not recomputed: a gradient would store them all"
    return first_reason(
        (not _by_equation(problem), "neither scores nor biases are user-defined functions"),
        (not _traced(problem), "eager calls know which tiles are visible"),
        (problem.mode == "transformed" and problem.gradient, stores_all),
    )


def work(problem: Problem) -> Work:
    """Count the work of the full matrix, whose tiles stay in the cache; the backward pass computes each tile again."""
    pairs, few = pairs_of(problem), " for few queries" if problem.queries < FEW_QUERIES else ""
    counts = {
        "operations": product_operations(problem),
        f"pairs of {problem.core}": pairs,
        "items": problem.rows,
        f"features of {problem.core}{few}": pairs * problem.width,
        f"calls of {problem.core}{few}": 1,
        "calls with a bias": 1 if problem.bias != "none" else 0,
        "positions": pairs if problem.positional else 0,
        f"masked pairs of {problem.core}": pairs if is_hidden(problem) else 0,
        "pairs in half precision": pairs if problem.dtype.itemsize == 2 else 0,
        "operations in float64": product_operations(problem) if problem.dtype.itemsize == 8 else 0,
        f"calls of {problem.core} with hidden pairs": 1 if is_hidden(problem) else 0,
        **normalizing(problem, problem.normalizer),
        **spreading(problem),
        **memory_traffic(problem),
    }
    memory = 64 << 20 if problem.on_host else 10 * 4 * RESIDENT.scores
    return Work(int(product_operations(problem) * passes(problem)), memory, counts)


def run(problem: Problem, call: Call, facts: Facts = None) -> Result:
    """Compute tiles of whole rows."""
    mechanism, inputs = prepare_inputs(problem, call)
    positions = call.bias if isinstance(call.bias, PositionBias) and not call.bias.bias.relative else None
    if positions is None:
        return _narrowed(problem, *attend(TiledProblem(Stripes, mechanism, call.visibility), inputs))
    reads = Reads(())
    make_bias = partial(PositionTiles, positions, len(problem.leading), reads)
    results = attend(TiledProblem(Stripes, mechanism, call.visibility, make_bias), inputs, *positions.learned)
    reads.guard(results)
    return _narrowed(problem, *results)


def _run_traced(problem: Problem, call: Call, facts: Facts) -> Result:
    mechanism, inputs = prepare_inputs(problem, call)
    return _narrowed(problem, *operators.apply(mechanism, inputs, call.visibility))


def _narrowed(problem: Problem, output: Tensor, state: Tensor) -> Result:
    """Cast the result to the problem's dtype, if the score computed its operands in a wider one."""
    if output.dtype != problem.dtype:
        output = output.to(problem.dtype)
    return Result(output, state if problem.state else None)


BLOCKED = Algorithm("tiled.blocked", "blocked", "tiles of whole rows that fit the cache", refuses, work, run)
TRACED = Algorithm(
    "tiled.operators", "blocked", "the same tiles as a registered operator", _refuses_traced, work, _run_traced
)
USER_SCORES = Algorithm(
    "tiled.user_scores",
    "blocked",
    "tiles of a user-defined score, recomputed by checkpoints",
    _refuses_user_scores,
    work,
    user_scores.run,
)
TRACED_USER_SCORES = Algorithm(
    "tiled.traced_user_scores",
    "blocked",
    "stripes of a user-defined score with all their keys",
    _refuses_traced_user_scores,
    work,
    user_scores.run_traced,
)
