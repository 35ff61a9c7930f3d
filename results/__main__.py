"""Train and score rows of the result table, then write `docs/project/results.md`.

    python -m results --data FOLDER                        every row, one after another
    python -m results --data FOLDER --row multi30k_gru     one row
    python -m results                                      write the table from the stored figures

FOLDER contains the folders `multi30k` with train.de, train.en, val.de, ..., `tinyshakespeare` with input.txt,
`g2p_sigmorphon2021` with hun_train.tsv, hun_dev.tsv, ..., `scan` with tasks_train_simple.txt, ..., `sst2` with
train.tsv and dev.tsv, and `align_enfr_hansards` with train.en.gz, trial.en, gold_even.en, ...
"""

import argparse
from pathlib import Path

from results import (
    alignment,
    comparison,
    copying,
    coverage,
    labels,
    language,
    long_copying,
    pointing,
    pronunciation,
    regression,
    transduction,
    translation,
)
from results.row import ROOT
from results.table import write_table

_FAMILIES = (
    translation,
    language,
    transduction,
    pronunciation,
    labels,
    alignment,
    regression,
    coverage,
    pointing,
    copying,
    long_copying,
    comparison,
)


def main() -> None:
    """Parse the command line, run the named rows, write the table."""
    parser = argparse.ArgumentParser(prog="python -m results", description=__doc__)
    parser.add_argument("--data", type=Path, help="folder with the data sets")
    parser.add_argument("--row", choices=_names(), action="append", help="one row; all by default")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs", help="where to create run folders")
    parser.add_argument("--score-only", action="store_true", help="score a finished run again")
    options = parser.parse_args()
    if options.data is not None:
        for family in _FAMILIES:
            for row in family.ROWS:
                if options.row is None or row.name in options.row:
                    family.run_row(row, options.data, options.runs / row.name, train=not options.score_only)
    write_table(ROOT / "docs" / "project" / "results.md")


def _names() -> list[str]:
    return [row.name for family in _FAMILIES for row in family.ROWS]


if __name__ == "__main__":
    main()
