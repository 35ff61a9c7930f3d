"""The cells of a comparison: every combination of the values that its settings are given, and the controls."""

import re
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple, final

from qkv.errors import ConfigError, setting
from qkv.tasks.compare.settings import can_vary
from qkv.tasks.recipe import AnyRecipe
from qkv.tasks.settings import TaskSettings

Value = Any
"""The value of a setting: a name, a number, or None."""
CONTROLS = ("none", "uniform")
"""Scores without attention, and with the same weight for every key: what any mechanism has to beat."""
_SCORE, _NORMALIZER = "score", "normalizer"
MOST = 1000
"""The most cells of a comparison."""


@final
class Cell(NamedTuple):
    """A combination.

    Attributes:
        values: the settings that differ between cells, by name.
        control: whether it is a control.
    """

    values: Mapping[str, Value]
    control: bool = False

    @property
    def name(self) -> str:
        """What it is called.

        Example:
            >>> Cell({"score": "dot", "heads": 4}).name
            'score=dot heads=4'
        """
        return " ".join(f"{name}={value}" for name, value in self.values.items()) or "as given"

    @property
    def folder(self) -> str:
        """The name of its folder.

        Example:
            >>> Cell({"score": "dot", "dropout": 0.1}).folder
            'score=dot,dropout=0.1'
        """
        return re.sub(r"[^\w.=,-]", "_", self.name.replace(" ", ","))


def cells_of(task: TaskSettings, settings: Mapping[str, Value | Sequence[Value]], *, controls: bool) -> list[Cell]:
    """Return every combination of the settings that have several values, the controls last.

    Args:
        task: the task.
        settings: settings by name; a list or a tuple has a value for each cell, if the setting can vary.
        controls: whether to add the controls if scores are compared.

    Raises:
        ConfigError: a setting that cannot vary has several values, one has none or one twice, or there are too many
            combinations.

    Example:
        >>> from qkv.tasks.translate.settings import TRANSLATE
        >>> [cell.name for cell in cells_of(TRANSLATE, {"score": ["dot", "cosine"], "heads": 2}, controls=False)]
        ['score=dot', 'score=cosine']
    """
    axes = {name: list(item) for name, item in settings.items() if isinstance(item, list) and can_vary(task, name)}
    for name, values in axes.items():
        if not values or len(values) != len(set(values)):
            got = "none" if not values else "one of them twice"
            raise ConfigError(setting(name), "different values to compare", got, "Give each value once.")
    cells = [Cell(dict(zip(axes, values, strict=True))) for values in product(*axes.values())]
    if controls and _SCORE in axes:
        others = {name: values for name, values in axes.items() if name not in (_SCORE, _NORMALIZER)}
        scores = [score for score in CONTROLS if score not in axes[_SCORE]]
        cells += [
            Cell({_SCORE: score, **dict(zip(others, values, strict=True))}, control=True)
            for score, values in product(scores, product(*others.values()))
        ]
    if len(cells) > MOST:
        raise ConfigError("settings", f"at most {MOST:,} combinations", f"{len(cells):,}", "Compare fewer values.")
    return cells


def settings_of(cell: Cell, settings: Mapping[str, Value]) -> dict[str, Value]:
    """Return the settings of a cell's training: a control has the normalizer of its score."""
    fixed = {name: item for name, item in settings.items() if not (cell.control and name == _NORMALIZER)}
    return {**fixed, **cell.values}


def divided(
    recipe: AnyRecipe, cells: Sequence[Cell], settings: Mapping[str, Value]
) -> tuple[list[Cell], dict[str, ConfigError]]:
    """Return the cells whose settings go together, and why the others do not.

    Raises:
        ConfigError: a value goes with no other ones, such as a misspelled name.
    """
    possible: list[Cell] = []
    refused: dict[str, ConfigError] = {}
    for cell in cells:
        try:
            recipe.load_settings(recipe.settings.in_tables(settings_of(cell, settings)))
        except ConfigError as error:
            refused[cell.name] = error
        else:
            possible.append(cell)
    useful = {item for cell in possible if not cell.control for item in cell.values.items()}
    mechanisms = [cell for cell in cells if not cell.control]
    for cell in mechanisms:
        if cell.name in refused and not (cell.values and useful.issuperset(cell.values.items())):
            raise refused[cell.name]
    return possible, {cell.name: refused[cell.name] for cell in mechanisms if cell.name in refused}
