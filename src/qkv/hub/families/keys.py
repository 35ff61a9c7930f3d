"""Typed access to another library's config.json."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeVar, final

from qkv.errors import CheckpointError, nearest

T = TypeVar("T")
_MAX_SIZE = 1 << 40
"""Larger sizes are refused: nothing has that many numbers in one dimension, and products of them overflow."""
_LAYERS = 10_000
_EXCERPT = 80


@final
class SettingsReader:
    """The settings of a model, each checked when it is read.

    Args:
        table: the contents of config.json, or a table within.
        defaults: the values of settings that may be missing.
        where: its name in messages.
        tensors: the names of the tensors that are stored.

    Example:
        >>> keys = SettingsReader({"n_head": 12}, {"n_layer": 12}, "config.json")
        >>> keys.size("n_head"), keys.size("n_layer")
        (12, 12)
        >>> keys.size("n_embd")
        Traceback (most recent call last):
        qkv.errors.CheckpointError: config.json: n_embd: expected a whole number from 1 to ...; got nothing. ...
    """

    def __init__(
        self,
        table: Mapping[str, Any],
        defaults: Mapping[str, Any],
        where: str,
        tensors: Sequence[str] = (),
    ) -> None:
        self.table, self.defaults, self.where = table, defaults, where
        self.tensors = frozenset(tensors)

    def get(self, name: str) -> Any:
        """Return a setting as it is, None included, or its default where it is missing; None if there is neither."""
        return self.table.get(name, self.defaults.get(name))

    def size(self, name: str, most: int = _MAX_SIZE) -> int:
        """Return a whole number from 1 to `most`."""
        value = self.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            self.refuse(name, f"a whole number from 1 to {most:,}")
        return value

    def maybe(self, name: str) -> int | None:
        """Return a whole number above 0; None if there is none."""
        return None if self.get(name) is None else self.size(name)

    def layers(self, name: str) -> int:
        """Return a number of layers: at most 10,000."""
        return self.size(name, _LAYERS)

    def token(self, name: str) -> int | None:
        """Return a token, or the first of several; None if there is none."""
        return next(iter(self.tokens(name)), None)

    def tokens(self, name: str) -> list[int]:
        """Return a token or several as a list; an empty one if there is none."""
        value = self.get(name)
        tokens = [] if value is None else value if isinstance(value, list) else [value]
        for token in tokens:
            if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token <= _MAX_SIZE:
                self.refuse(name, "a token's number")
        return tokens

    def token_lists(self, name: str) -> list[list[int]]:
        """Return lists of tokens; an empty list if there is none."""
        value = self.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(tokens, list) for tokens in value):
            self.refuse(name, "lists of tokens' numbers")
        return [SettingsReader({name: tokens}, {}, self.where).tokens(name) for tokens in value]

    def number(self, name: str) -> float:
        """Return a finite number above 0."""
        value = self.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            self.refuse(name, "a number above 0")
        return float(value)

    def maybe_number(self, name: str) -> float | None:
        """Return a finite number above 0; None if there is none."""
        return None if self.get(name) is None else self.number(name)

    def share(self, name: str) -> float:
        """Return a fraction in [0, 1); 0 if there is none."""
        value = self.get(name) or 0.0
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1:
            self.refuse(name, "a fraction in [0, 1)")
        return float(value)

    def flag(self, name: str) -> bool:
        """Return whether a setting is on."""
        value = self.get(name)
        if not isinstance(value, bool):
            self.refuse(name, "true or false")
        return value

    def maybe_flag(self, name: str) -> bool:
        """Return whether a setting is on; False if there is none."""
        return self.get(name) is not None and self.flag(name)

    def choice(self, name: str, names: Mapping[str, T]) -> T:
        """Return what a name stands for."""
        value = self.get(name)
        if not isinstance(value, str) or value not in names:
            self.refuse(name, f"one of {', '.join(names)}", nearest(str(value)[:_EXCERPT], names))
        return names[value]

    def table_of(self, name: str) -> "SettingsReader | None":
        """Return a table of settings; None if there is none, or an empty one."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            self.refuse(name, "a table")
        return None if not value else SettingsReader(value, {}, f"{self.where}: {name}")

    def expect(self, **values: Any) -> None:
        """Refuse settings that change what is computed in a way that this library does not compute."""
        for name, value in values.items():
            if self.get(name) is not None and self.get(name) != value:
                self.refuse(name, f"{value}, the only choice that qkv computes")

    def refuse(self, name: str, expected: str, hint: str = "") -> NoReturn:
        """Raise an error about a setting.

        Raises:
            CheckpointError: always.
        """
        value = self.get(name)
        got = "nothing" if value is None else ascii(value)[:_EXCERPT]
        hint = hint or "Check the file, or copy the folder again from its source."
        raise CheckpointError(f"{self.where}: {name}", expected, got, hint)


_MAX_LABELS = 1 << 20
_ATTACH = "Other outputs run in transformers, and are recorded there: see qkv.hub.attach."


def labels_of(keys: SettingsReader) -> tuple[str, ...]:
    """Return the names of the labels, in the order of the output layer.

    Args:
        keys: its config.json: `id2label`, or `num_labels` alone, or neither, which stands for two labels.

    Raises:
        CheckpointError: the table does not list labels, or the outputs are not the scores of labels that exclude each
            other.

    Example:
        >>> labels_of(SettingsReader({"id2label": {"0": "bad", "1": "good"}}, {}, "config.json"))
        ('bad', 'good')
        >>> labels_of(SettingsReader({}, {}, "config.json"))
        ('LABEL_0', 'LABEL_1')
    """
    if keys.get("problem_type") not in (None, "single_label_classification"):
        keys.refuse("problem_type", "single_label_classification, the only one that is computed here", _ATTACH)
    table = keys.get("id2label")
    if table is None:
        count = 2 if keys.get("num_labels") is None else keys.size("num_labels", _MAX_LABELS)
        table = {str(number): f"LABEL_{number}" for number in range(count)}
    if not isinstance(table, Mapping) or set(table) != {str(number) for number in range(len(table))}:
        keys.refuse("id2label", "a table from 0, 1, ... to labels")
    labels = tuple(table[str(number)] for number in range(len(table)))
    if not all(isinstance(label, str) for label in labels) or len(set(labels)) < len(labels):
        keys.refuse("id2label", "labels that are texts, all different")
    if len(labels) < 2:
        keys.refuse("id2label", "two labels or more: one output is a regression, which is not computed here", _ATTACH)
    return labels
