"""Data that the chapters of the course use."""

from pathlib import Path

import torch
from torch import Tensor

from qkv.files import read_file

_LARGEST = 1 << 20


def engel() -> tuple[Tensor, Tensor]:
    """Return income and spending on food of 235 Belgian working-class households in 1857, in francs a year.

    Returns:
        Income and food, (235,) each, float32, by rising income.

    Source: Ernst Engel 1857, "Die Productions- und Consumtionsverhältnisse des Königreichs Sachsen"; public domain, as
    distributed with statsmodels (Koenker and Bassett 1982).

    Example:
        >>> income, food = engel()
        >>> bool((food < income).all())
        True
    """
    lines = _text("engel.csv").splitlines()[1:]
    table = torch.tensor([[float(cell) for cell in line.split(",")] for line in lines], device="cpu")
    return table[:, 0], table[:, 1]


def novel() -> str:
    """Return the first chapters of War and Peace, in English: some 60,000 characters.

    Source: Leo Tolstoy, translated by Louise and Aylmer Maude; public domain in the United States (GITenberg 2600).

    Example:
        >>> novel()[:14]
        'BOOK ONE: 1805'
    """
    return _text("war_and_peace.txt")


def _text(name: str) -> str:
    return read_file(Path(__file__).with_name(name), _LARGEST).decode("utf-8")
