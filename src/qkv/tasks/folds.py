"""Cross-validation: the examples of a task divided into parts, each of which tests a training on all others.

OUT/folds/train-1.tsv    all parts but the first
OUT/folds/test-1.tsv     the first
"""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from qkv.checkpoint.disk import make_folder, replace_file
from qkv.errors import ConfigError

MOST_FOLDS = 1000
_FOLDER = "folds"


class Examples(NamedTuple):
    """What a task is trained on, as examples that can be divided.

    Attributes:
        inputs: what each example reads; those with the same input stay together.
        kinds: of each example what every part should have its share of, such as its label.
        write: returns examples as the text of a file, by their indices.
        suffix: of such a file.
        settings: with which the task reads it.
    """

    inputs: Sequence[Hashable]
    kinds: Sequence[str]
    write: Callable[[Sequence[int]], str]
    suffix: str
    settings: Mapping[str, Any]


def folds_of(examples: Examples, count: int) -> list[int]:
    """Return the part of each example, from 0: parts of about equal size, with about equal shares of each kind.

    Args:
        examples: what to divide.
        count: how many parts.

    Raises:
        ConfigError: there are too few different inputs.

    Source: Kohavi 1995, "A Study of Cross-Validation and Bootstrap for Accuracy Estimation and Model Selection".

    Example:
        >>> examples = Examples("abcdca", ["yes", "yes", "no", "no", "no", "yes"], lambda indices: "", "", {})
        >>> folds = folds_of(examples, 2)
        >>> folds[0] == folds[5] != folds[1], folds[2] == folds[4] != folds[3]
        (True, True)
    """
    groups: dict[Hashable, list[int]] = {}
    for index, key in enumerate(examples.inputs):
        groups.setdefault(key, []).append(index)
    if not 2 <= count <= min(len(groups), MOST_FOLDS):
        expected = f"from 2 to {min(len(groups), MOST_FOLDS):,}"
        raise ConfigError("folds", expected, f"{count:,} for {len(groups):,} different inputs", "5 or 10 are usual.")
    order = list(groups.values())
    Random(0).shuffle(order)
    order.sort(key=lambda indices: (examples.kinds[indices[0]], -len(indices)))
    parts, sizes, of_kind = [0] * len(examples.inputs), [0] * count, Counter[tuple[int, str]]()
    for indices in order:
        kind = examples.kinds[indices[0]]
        part = min(range(count), key=lambda part: (of_kind[part, kind], sizes[part]))
        sizes[part] += len(indices)
        of_kind[part, kind] += len(indices)
        for index in indices:
            parts[index] = part
    return parts


def write_folds(examples: Examples, count: int, out: Path) -> list[tuple[Path, Path]]:
    """Write the files of each part: what to train on, and what to test on.

    Args:
        examples: what to divide.
        count: how many parts.
        out: a folder; other processes that write the same files do no harm.

    Raises:
        ConfigError: there are too few different inputs.
    """
    parts, folder = folds_of(examples, count), out / _FOLDER
    make_folder(folder)
    files = []
    for number in range(count):
        paths = tuple(folder / f"{what}-{number + 1}{examples.suffix}" for what in ("train", "test"))
        for path, tests in zip(paths, (False, True), strict=True):
            text = examples.write([index for index, part in enumerate(parts) if (part == number) is tests])
            replace_file(path, text.encode("utf-8"))
        files.append((paths[0], paths[1]))
    return files
