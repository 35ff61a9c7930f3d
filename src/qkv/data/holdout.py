"""Choosing validation examples among the training examples, if the user gives none.

Examples with the same input are held out together, so that no validation input is ever trained on. With few different
inputs nothing is held out: a model that never sees one of two sentences cannot learn it.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from random import Random
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from qkv.data.choices import MOST_HELD_OUT, SHARE
from qkv.data.corpus import Pair
from qkv.data.report import SHOWN, say
from qkv.errors import ConfigError, setting

_FEW_SEEN = 20
"""One validation input in so many may be trained on: a few repeat by chance."""
T = TypeVar("T")


class Split(NamedTuple, Generic[T]):
    """Examples to train on and examples to validate on.

    Attributes:
        train, valid: the examples, each in the given order.
        message: what the user should know of the choice; empty if it is the usual one.
    """

    train: list[T]
    valid: list[T]
    message: str = ""


def no_labels(_: object) -> Iterable[Hashable]:
    """Return no labels: any example can be held out."""
    return ()


def split(
    items: Sequence[T],
    seed: int,
    *,
    parts: Callable[[T], tuple[Hashable, Hashable]],
    names: tuple[str, str],
    share: int = SHARE,
    labels: Callable[[T], Iterable[Hashable]] = no_labels,
    when: str = "",
) -> Split[T]:
    """Choose validation examples: one in `share` of them and of the different inputs, at most `MOST_HELD_OUT`.

    An input with more than one in `share` of all examples is always trained on, and so is the last example of a label.

    Args:
        items: all examples.
        seed: random seed.
        parts: the input and the answer of an example.
        names: what examples and their inputs are called, in plural.
        share: hold out one in so many.
        labels: the labels of an example that must remain in training.
        when: for messages, when validation examples can be given, as in " when you train"; "" for now.

    Returns:
        The split. If there are fewer than `share` different inputs, or all are needed in training, every example is
        trained on, and each different example, at most so many, is validated on once.

    Raises:
        ConfigError: there are no examples.

    Example:
        >>> pairs = [Pair("ein Hund", "a dog", 1), Pair("eine Katze", "a cat", 2)] * 50
        >>> result = split(pairs, 0, parts=lambda pair: (pair.source, pair.target), names=("pairs", "sources"))
        >>> len(result.train), len(result.valid)
        (100, 2)
    """
    if not items:
        raise ConfigError("data", "examples to train on", "none", "Check the file.")
    counts = Counter(parts(item)[0] for item in items)
    label_sets: dict[Hashable, set[Hashable]] = {}
    for item in items if labels is not no_labels else ():
        label_sets.setdefault(parts(item)[0], set()).update(labels(item))
    inputs_of_label = Counter(label for label_set in label_sets.values() for label in label_set)
    largest = len(items) // share
    held_out: set[Hashable] = set()
    count = 0
    for key in _shuffled(counts, seed):
        if count >= min(MOST_HELD_OUT, largest) or len(held_out) >= len(counts) // share:
            break
        key_labels = label_sets.get(key, ())
        if counts[key] <= largest and all(inputs_of_label[label] > 1 for label in key_labels):
            held_out.add(key)
            count += counts[key]
            inputs_of_label.subtract(key_labels)
    unit, inputs_name = names
    if held_out:
        train, valid = _divided(items, (parts(item)[0] for item in items), held_out)
        rule = f"one in {share}, at most {MOST_HELD_OUT:,}"
        say(held_out_text(valid, len(items), unit, inputs_name, seed, rule))
        return Split(train, valid)
    few = f"with fewer than {share} different {inputs_name} ({len(counts):,})"
    reason = few if len(counts) < share else "because every label must remain in training"
    message = (
        f"{reason}, no {unit} are held out: the figures of validation are those of {unit} that are trained on. Give "
        f"validation {unit}{when}, or more training {unit}, to judge new text."
    )
    return Split(list(items), _sample_different(items, parts, seed), message)


def held_out_text(
    valid: Sequence[object], count: int, unit: str, inputs_name: str, seed: int, rule: str = "as many as asked for"
) -> str:
    """Say which examples are held out, and by which rule.

    Args:
        valid: the examples that are held out.
        count: of all examples.
        unit, inputs_name: what examples and their inputs are called, in plural.
        seed: random seed.
        rule: how many are held out.
    """
    lines = [f"{item.line:,}" for item in valid[:SHOWN] if hasattr(item, "line")]
    shown = f": line {', '.join(lines)}{', …' if len(valid) > len(lines) else ''}" if lines else ""
    how = f"{rule}, drawn by the seed {seed}; no {inputs_name} are on both sides"
    return f"held out to validate on: {len(valid):,} of {count:,} {unit} ({how}){shown}"


def hold_out(pairs: Sequence[Pair], count: int, seed: int, when: str = "") -> tuple[list[Pair], list[Pair]]:
    """Split pairs so that no source text is on both sides.

    Args:
        pairs: all pairs; those that share a source text stay together.
        count: minimum number of pairs to hold out. Sources with more pairs than that are held out only if the others
            do not suffice.
        seed: random seed.
        when: as for `split`.

    Returns:
        The training pairs and the held-out pairs, each in the given order.

    Raises:
        ConfigError: nothing would remain for training, or nothing is held out.

    Example:
        >>> train, held = hold_out([Pair(c, c, n) for n, c in enumerate("abca", start=1)], 1, seed=0)
        >>> len(train) + len(held), {p.source for p in train} & {p.source for p in held}
        (4, set())
    """
    if count < 1:
        raise ConfigError("holdout", "at least 1 pair", str(count), "Hold out a few hundred pairs.")
    frequency = Counter(pair.source for pair in pairs)
    held_out: set[Hashable] = set()
    total = 0
    # The order is stable: sources that are too frequent come last, the least frequent of them first.
    for source in sorted(_shuffled(frequency, seed), key=lambda source: max(count, frequency[source])):
        if total >= count:
            break
        held_out.add(source)
        total += frequency[source]
    if total < count or total == len(pairs):
        got = f"{len(pairs):,} pairs with {len(frequency):,} distinct sources"
        instead = "omit " + setting("holdout") + f" and give pairs to validate on{when} (" + setting("valid_data") + ")"
        hint = "Hold out fewer, or " + instead + "."
        raise ConfigError("holdout", f"more than {count:,} pairs with distinct sources", got, hint)
    train, valid = _divided(pairs, (pair.source for pair in pairs), held_out)
    say(held_out_text(valid, len(pairs), "pairs", "sources", seed))
    return train, valid


def seen_in_training(train: Iterable[Hashable], judged: Sequence[Hashable], name: str) -> str | None:
    """Say if what a model is judged by was trained on too, so much of it that its figures mislead.

    Args:
        train: the inputs to train on.
        judged: those to validate or test on.
        name: what they are called.

    Returns:
        A message; None if at most one in twenty is.

    Example:
        >>> seen_in_training(["ein Hund", "eine Katze"], ["ein Hund", "ein Kind"], "validation sources")
        '1 of 2 validation sources is trained on too: figures say little about others.'
    """
    train_items = set(train)
    count = sum(key in train_items for key in judged)
    if count * _FEW_SEEN <= len(judged):
        return None
    are = "is" if count == 1 else "are"
    return f"{count:,} of {len(judged):,} {name} {are} trained on too: figures say little about others."


def _shuffled(keys: Mapping[T, int], seed: int) -> list[T]:
    random = Random(f"hold out:{seed}")
    drawn = np.fromiter((random.random() for _ in keys), np.float64, len(keys))
    listed = list(keys)
    return [listed[index] for index in np.argsort(drawn, kind="stable")]


def _divided(items: Sequence[T], keys: Iterable[Hashable], held_out: set[Hashable]) -> tuple[list[T], list[T]]:
    train: list[T] = []
    held: list[T] = []
    for item, key in zip(items, keys, strict=True):
        (held if key in held_out else train).append(item)
    return train, held


def _sample_different(items: Sequence[T], parts: Callable[[T], tuple[Hashable, Hashable]], seed: int) -> list[T]:
    """Return each different example once; of more than `MOST_HELD_OUT`, a sample."""
    first: dict[tuple[Hashable, Hashable], int] = {}
    for index, item in enumerate(items):
        first.setdefault(parts(item), index)
    first_indices = list(first.values())
    if len(first_indices) > MOST_HELD_OUT:
        first_indices = sorted(Random(f"validate:{seed}").sample(first_indices, MOST_HELD_OUT))
    return [items[index] for index in first_indices]
