"""Data and a small run of each task, for tests of what commands say."""

from pathlib import Path
from typing import final

from tests.cli.command import run, succeeded

SMALL = ["--width", "8", "--steps", "2"]
SORT = "3 1 2\t2 3 1\n1 3 2\t1 3 2\n2 3 1\t3 1 2\n"
FILES = {
    "pairs.tsv": "".join(f"{a} {b}\t{b} {a}\n" for a in "abcd" for b in "abcd"),
    "test.tsv": "a b\tb a\nc d\td c\n",
    "films.tsv": "good\ta funny film\nbad\ta dull film\n" * 8,
    "names.conll": "Ada B-PER\nwrote O\n\nBonn B-LOC\nsleeps O\n\n" * 8,
    "plays.txt": "KING: who goes there?\n" * 40,
    "sort.tsv": SORT * 8,
    "rents.csv": "area,rent\n" + "".join(f"{area},{300 + 8 * area}\n" for area in range(20, 40)),
}
TRAININGS = {
    "translate": ["--data", "pairs.tsv", "--model", "gru", "--tokenizer", "char", *SMALL],
    "classify": ["--data", "films.tsv", *SMALL],
    "tag": ["--data", "names.conll", "--model", "transformer", "--heads", "2", *SMALL],
    "generate": ["--text", "plays.txt", "--heads", "2", "--layers", "1", "--context", "8", *SMALL],
    "point": ["--data", "sort.tsv", *SMALL],
    "regress": ["--data", "rents.csv", "--x", "area", "--y", "rent"],
}


@final
class Shelf:
    """A folder with data of each task; a run is trained when a test first asks for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, text in FILES.items():
            (folder / name).write_text(text, encoding="utf-8")

    def run(self, task: str) -> str:
        """The run of a task; within the folder."""
        place = self.folder / "runs" / task
        if not place.exists():
            succeeded(run("train", task, *TRAININGS[task], "--out", place))
        return str(place)
