"""The worst errors per backend and dtype, as a table: `python -m tests.contract.table [--all] [--write FILE]`.

`--all` runs the whole cross product, an hour or two on one core. `--resume FILE` saves each score and dtype there when
it is done; the same command resumes from there.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from tests.contract.judge import GRADIENT, INPUTS, Case, Trial, cross_product, sample
from tests.contract.mechanisms import DTYPES, MASKS, NORMALIZERS, ON_CPU, SCORES, ScoreCase

CERTAIN = 0.5
"""Shares below this are not computed more precisely: they are at most as large as the table says."""

COMMAND = "OMP_NUM_THREADS=1 python -m tests.contract.table{} --write docs/understanding/contract.md"


@dataclass
class Worst:
    """The worst of a backend in a dtype, as shares of the limit; `small`: gradients of the score's parameters."""

    cases: int = 0
    output: float = 0.0
    gradient: float = 0.0
    small: float = 0.0
    where: str = ""

    @property
    def share(self) -> float:
        """The largest."""
        return max(self.output, self.gradient, self.small)

    def add(self, case: Case, trial: Trial, backend: str) -> None:
        """Count a case, and record it if it is the worst."""
        found = trial.shares(backend, CERTAIN)
        inputs = {GRADIENT + name for name in INPUTS}
        self.take(
            Worst(
                1,
                found["output"],
                max(found[name] for name in inputs),
                max((share for name, share in found.items() if name not in {"output", *inputs}), default=0.0),
                f"{case.score.name} × {case.normalizer.name} × {case.mask.name}",
            )
        )

    def take(self, other: "Worst") -> None:
        """Add the cases of another record."""
        if other.share > self.share:
            self.where = other.where
        self.cases += other.cases
        self.output, self.gradient = max(self.output, other.output), max(self.gradient, other.gradient)
        self.small = max(self.small, other.small)


Found = dict[str, Worst]


def measure(score: ScoreCase, dtype: torch.dtype, everything: bool) -> Found:
    """Run every case of a score on every backend that supports it."""
    found: Found = {}
    for case in (cross_product if everything else sample)(score, dtype):
        trial = Trial(case)
        for backend in ON_CPU:
            if trial.refusal(backend) is None:
                found.setdefault(backend, Worst()).add(case, trial, backend)
    return found


def all_of(everything: bool, kept: Path | None) -> dict[tuple[str, str], Worst]:
    """The worst of each backend and dtype over all scores."""
    lines = kept.read_text().splitlines() if kept is not None and kept.exists() else []
    done = {(line["score"], line["dtype"]): line["found"] for line in map(json.loads, lines)}
    total: dict[tuple[str, str], Worst] = {}
    for dtype in DTYPES:
        for score in SCORES:
            name = str(dtype).removeprefix("torch.")
            found = done.get((score.name, name))
            if found is None:
                found = {backend: asdict(worst) for backend, worst in measure(score, dtype, everything).items()}
                if kept is not None:
                    with kept.open("a") as file:
                        file.write(json.dumps({"score": score.name, "dtype": name, "found": found}) + "\n")
            for backend, worst in found.items():
                total.setdefault((backend, name), Worst()).take(Worst(**worst))
    return total


def rows(total: dict[tuple[str, str], Worst]) -> Iterator[str]:
    """The table, line by line."""
    yield "| backend | dtype | cases | output | gradient | gradient of parameters | where |"
    yield "|---|---|---:|---:|---:|---:|---|"
    for (backend, dtype), w in sorted(total.items(), key=lambda item: ON_CPU.index(item[0][0])):
        errors = f"{w.output:.2f} | {w.gradient:.2f} | {w.small:.2f}"
        yield f"| `{backend}` | {dtype} | {w.cases:,} | {errors} | {w.where} |"


def page(total: dict[tuple[str, str], Worst], everything: bool) -> str:
    """The page with the contract's numbers."""
    answers = sum(worst.cases for worst in total.values())
    cases = sum(worst.cases for (backend, _), worst in total.items() if backend == "reference")
    kind = "Every legal combination" if everything else "Part (`--all` takes the whole) of every legal combination"
    command = COMMAND.format(" --all" if everything else "")
    head = f"{len(SCORES)} scores × {len(NORMALIZERS)} normalizers × {len(MASKS)} masks × {len(DTYPES)} dtypes"
    return PAGE.format(
        kind=kind, head=head, cases=cases, answers=answers, table="\n".join(rows(total)), command=command
    )


PAGE = """# How exact every backend is

In short: every backend is about as exact as the equation written in PyTorch, in every type and at any length. No \
approximation is ever chosen for you. A row that may see nothing gives 0, and masked keys have no part in any result. \
The rest of this page says what *about as exact* means, and what was measured.

{kind} of {head}, {cases:,} cases, each computed forward and backward by every backend that supports it: \
{answers:,} results. Generated by `{command}`.

A result o is exact if rms(o−r) ≤ 1.5·rms(m−r) + ε and max|o−r| ≤ 3·max|m−r| + ε. Here r is the float64 result on the \
same rounded inputs, m is the equation computed literally in the tested dtype (a Gaussian under its sum in log space, \
as a softmax of −‖q−k‖²/2h²), and ε is two roundoffs of the largest value. The same holds for gradients, where ε is \
relative to the largest gradient. Two rules make a verdict the same on every processor:

- **m−r is pooled over 16 evaluations** of the equation that differ in the order of their sums: items, queries, keys, \
features and columns in four permutations, and sums in blocks of 1, 8, 16 and 32 terms.
- **A limit that is exceeded on fewer than 512 independent rows is no verdict.** New inputs are drawn and all errors \
pooled, until the limit is kept or there are 512 rows; by then the rms of independent errors is known within 16%. \
Gradients of parameters, which are sums over all rows, count by their own numbers.

Each figure is the worst error over all cases as a share of its limit: 1 is the limit. Evaluations stop as soon as a \
share is certain to be below 0.5, and draws as soon as it is at most 1; so a figure near 1 for parameters, of which \
one draw has a few numbers, says where the drawing stopped.

{table}

The limit is larger in two cases:

- **float32 gradients of `sdpa`, and of the distances that `rowwise` passes to the same kernel: 2·(1 + S/64) times \
the limit**, where S is the largest score in absolute value. They come from PyTorch's own kernel. Its backward pass \
recomputes the weights as exp(s − lse) from a rounded lse, so all weights of a row are off by up to u·|lse|; the \
literal softmax has no such error. At standard deviations 1, 2, 4, 6 and 8 of queries and keys (S = 5, 21, 86, 193, \
343; 1,024 keys of width 32) the worst gradient has 1.2, 1.2, 2.1, 3.7 and 4.8 times the limit, and `blocked` at \
most 0.53. `backend="auto"` may still choose it: the error is that of rounding each score once more, which float32 \
scores of that size have in any case. At S = 343 it is at most 6e-5 of the largest gradient (`blocked`: 1.5e-5), at \
S = 86 1.4e-5. `backend="blocked"` avoids it.
- **float64: five times the errors of the equation in float32**, scaled by the ratio of the two roundoffs, because no \
wider type is available as a judge. The judge itself rounds, by up to 20 roundoffs, and the rounding errors of two \
types are two independent draws. The float64 reference itself is checked against a second implementation in extended \
precision that shares no code with it.

**Parameters** of scores, normalizers and biases may have another type than query, key and value. They are promoted to \
the type that the call computes in before any arithmetic, never lowered to a narrower one.

**Row states** are float64, and so exact enough to be merged: outputs, states and gradients merged from parts in any \
order and grouping keep the contract. PyTorch's kernel returns log Σ exp(s) in float32; where it serves, a second pass \
over the scores computes the missing digits, as `qkv.explain` says. For `Hard`, `merge` takes the position of each \
part's first key, and ties go to the first key of all.

**Masked keys.** Keys and finite values that a row may not see leave its output within the bound, whatever they hold, \
even if other rows see them. Inf or NaN in a value that some row sees can reach other rows as 0·NaN, and gradients can \
carry any of these, as in PyTorch.

**NaN and overflow.** A row that sees NaN in a key or in its query is NaN, compiled or not. Scores that are too large \
for the type they are computed in (float32, or float64 for float64 inputs), beyond 3e38, become ±∞. A row with +∞ is \
NaN in every backend. A row whose scores are *all* −∞ by overflow is NaN or, like a row that sees nothing, 0, \
depending on the backend and the mask: a kernel cannot tell such a score from that of a masked key, or of a bias of \
−∞. Hard attention gives 0. Its row state is −∞, so that it has no share in a merged output.
"""


def main() -> None:
    """Measure, then print the table or write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="the whole cross product instead of a sample")
    parser.add_argument("--resume", type=Path, help="keep what is done in this file, and go on from there")
    parser.add_argument("--write", type=Path, help="write the page instead of printing the table")
    given = parser.parse_args()
    torch.set_num_threads(1)
    total = all_of(given.all, given.resume)
    if given.write is None:
        print("\n".join(rows(total)))  # noqa: T201
    else:
        given.write.write_text(page(total, given.all))


if __name__ == "__main__":
    main()
