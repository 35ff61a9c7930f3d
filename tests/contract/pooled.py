"""The error of every kernel relative to the equation's, pooled over 16 orders: `python -m tests.contract.pooled`.

For each algorithm on the CPU, and mechanisms that it computes in float32: rms(o−r)/rms(m−r) of the output and of each
gradient, without the ε of the criterion, over 200 inputs. Above 1.5 a kernel is less exact than the contract says.
"""

import argparse
from collections.abc import Iterator

import torch
from tests.contract.criterion import Errors, Pool
from tests.contract.judge import GRADIENT, INPUTS, Case, Trial
from tests.contract.mechanisms import MASK, NORMALIZER, SCORE
from tests.contract.orders import ORDERS

from qkv.planner.registry import ALGORITHMS

MECHANISMS = (
    ("scaled_dot", "softmax", "none"),
    ("scaled_dot", "softmax", "causal"),
    ("scaled_dot_narrow", "softmax_sink", "lengths"),
    ("scaled_dot", "mean", "causal"),
    ("scaled_dot", "sigmoid", "dense"),
    ("scaled_dot", "entmax", "none"),
    ("scaled_dot", "hard", "none"),
    ("additive", "softmax", "none"),
    ("additive_projected", "identity", "lengths"),
    ("additive_projected", "sigmoid", "causal"),
    ("squared_distance", "softmax", "none"),
    ("squared_distance_near", "softmax", "none"),
    ("gaussian", "sum", "causal"),
    ("gaussian", "identity", "none"),
    ("epanechnikov_per_head", "sum", "none"),
    ("concat", "mean", "lengths"),
    ("concat_leaky_per_head", "softmax", "none"),
    ("learned", "softmax", "none"),
)
FEW = (("scaled_dot", "softmax", "lengths"), ("additive", "softmax", "none"), ("additive_projected", "sigmoid", "none"))
"""Mechanisms with kernels for few queries."""

CASES = (
    *(Case(SCORE[score], NORMALIZER[normalizer], MASK[mask], torch.float32) for score, normalizer, mask in MECHANISMS),
    *(Case(SCORE[score], NORMALIZER[normalizer], MASK[mask], torch.float32, 2) for score, normalizer, mask in FEW),
)
HEAD = "| kernel | mechanism | output | query | key | value | parameters |\n|---|---|---:|---:|---:|---:|---:|"


def quotients(case: Case, inputs: int) -> Iterator[tuple[str, dict[str, float]]]:
    """The quotients of every algorithm that computes a case."""
    first = Trial(case)
    names = [algorithm.name for algorithm in ALGORITHMS if first.refusal(algorithm.name) is None]
    pools: dict[str, dict[str, Pool]] = {name: {} for name in names}
    for turn in range(inputs):
        trial = Trial(case, turn)
        for name in names:
            errors = Errors(trial.draw(name))
            for order in ORDERS:
                errors.evaluate(order)
            for result in errors.literal:
                pools[name].setdefault(result, Pool(case.dtype, 1.0)).add(result, errors)
    for name in names:
        yield name, {result: pool.quotient() for result, pool in pools[name].items()}


def line(name: str, case: Case, found: dict[str, float]) -> str:
    """A row of the table."""
    inputs = [found[GRADIENT + leaf] for leaf in ("query", "key", "value")]
    others = [x for result, x in found.items() if result.removeprefix(GRADIENT) not in {"output", *INPUTS}]
    numbers = [found["output"], *inputs, *([max(others)] if others else [])]
    cells = [f"{x:.2f}" + (" **!**" if x > 1.5 else "") for x in numbers] + [""] * (not others)
    return f"| `{name}` | {str(case).partition(' in ')[0]} | {' | '.join(cells)} |"


def main() -> None:
    """Print the table, case by case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=200)
    parser.add_argument("--only", default="", help="cases with this in their name")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(HEAD)  # noqa: T201
    for case in CASES:
        if given.only in str(case):
            for name, found in quotients(case, given.inputs):
                print(line(name, case, found), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
