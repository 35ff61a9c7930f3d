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


def section(total: dict[tuple[str, str], Worst], everything: bool) -> str:
    """The generated part of the page."""
    answers = sum(worst.cases for worst in total.values())
    cases = sum(worst.cases for (backend, _), worst in total.items() if backend == "reference")
    kind = "Every legal combination" if everything else "Part (`--all` takes the whole) of every legal combination"
    command = COMMAND.format(" --all" if everything else "")
    head = f"{len(SCORES)} scores × {len(NORMALIZERS)} normalizers × {len(MASKS)} masks × {len(DTYPES)} dtypes"
    return SECTION.format(
        kind=kind, head=head, cases=cases, answers=answers, table="\n".join(rows(total)), command=command
    )


def insert(text: str, part: str) -> str:
    """Return a page with another part between its markers."""
    before, rest = text.split(BEGIN, 1)
    return f"{before}{BEGIN}\n{part.strip()}\n{END}{rest.split(END, 1)[1]}"


BEGIN, END = "<!-- table: begin, made by python -m tests.contract.table -->", "<!-- table: end -->"
SECTION = """{kind} of {head}, {cases:,} cases, each computed forward and backward by every backend that supports it: \
{answers:,} results. Generated by `{command}`.

Each figure is the worst error over all cases as a share of its limit: 1 is the limit. Evaluations stop as soon as a \
share is certain to be below 0.5, and draws as soon as it is at most 1; so a figure near 1 for parameters, of which \
one draw has a few numbers, says where the drawing stopped.

{table}
"""


def main() -> None:
    """Measure, then print the table or write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="the whole cross product instead of a sample")
    parser.add_argument("--resume", type=Path, help="keep what is done in this file, and go on from there")
    parser.add_argument("--write", type=Path, help="write the table into this page instead of printing it")
    given = parser.parse_args()
    torch.set_num_threads(1)
    total = all_of(given.all, given.resume)
    if given.write is None:
        print("\n".join(rows(total)))  # noqa: T201
    else:
        text = insert(given.write.read_text(encoding="utf-8"), section(total, given.all))
        given.write.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
