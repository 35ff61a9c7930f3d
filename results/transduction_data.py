"""Training, validation and test files of the rows of short texts: one pair `source<TAB>target` per line."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from string import ascii_letters
from typing import NamedTuple

from qkv.data import dates
from qkv.data.corpus import Pair
from qkv.data.holdout import hold_out
from results import reverse

_SYMBOLS = ascii_letters[:50]
_ACTIONS = {"I_WALK": "W", "I_RUN": "U", "I_JUMP": "J", "I_LOOK": "K", "I_TURN_LEFT": "L", "I_TURN_RIGHT": "R"}


class Parts(NamedTuple):
    """Pairs of one row.

    Attributes:
        train: for training.
        valid: for monitoring the training.
        test: for scoring.
    """

    train: Sequence[Pair]
    valid: Sequence[Pair]
    test: Sequence[Pair]


def date_parts() -> Parts:
    """Return 20,000 training dates, and 1,000 and 10,000 dates of days that do not occur among them."""
    return Parts(*(getattr(dates.splits(20_000, 1_000, 10_000, 0), name) for name in ("train", "validation", "test")))


def reverse_parts() -> Parts:
    """Return Joey NMT's task: sequences of 50 symbols, up to 25 long in training, up to 30 otherwise.

    No source occurs in two parts.

    Source: joeynmt, scripts/generate_reverse_task.py.
    """
    held = reverse.generate(2_000, 1, symbols=_SYMBOLS, longest=30)
    taken = {pair.source for pair in held}
    drawn = reverse.generate(52_000, 0, symbols=_SYMBOLS, longest=25)
    return Parts([pair for pair in drawn if pair.source not in taken][:50_000], held[:1_000], held[1_000:])


def short_parts(sizes: Mapping[str, int]) -> Parts:
    """Return short strings of letters and their reversal; no source occurs twice.

    Args:
        sizes: numbers of pairs to train, validate and test on, the shortest and longest length, and the seed.
    """
    counts = [sizes[name] for name in ("train", "validation", "test")]
    pairs = reverse.generate(sum(counts), sizes["seed"], shortest=sizes["shortest"], longest=sizes["longest"])
    valid, test = counts[0], counts[0] + counts[1]
    return Parts(pairs[:valid], pairs[valid:test], pairs[test:])


def scan_parts(folder: Path, split: str) -> Parts:
    """Return commands and actions: one letter per action, a turn and the next action as one word; 500 are held out.

    "I_TURN_LEFT I_WALK I_JUMP" is written "LW J", which is equivalent. An action around a corner three times then has
    as many words as turning around three times, which is short enough to occur in training commands.

    Args:
        folder: folder with the files of SCAN.
        split: "simple" or "length".
    """
    train, test = (list(_scan(folder / f"tasks_{part}_{split}.txt")) for part in ("train", "test"))
    return Parts(*hold_out(train, 500, 0), test)


def _scan(path: Path) -> Iterator[Pair]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        source, target = line.removeprefix("IN: ").split(" OUT: ")
        letters = "".join(_ACTIONS[action] for action in target.split())
        yield Pair(source, " ".join(re.findall("[LR]?[WUJK]|[LR]", letters)), number)


def write(pairs: Sequence[Pair], path: Path) -> None:
    """Write `source<TAB>target` lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in pairs), encoding="utf-8")
