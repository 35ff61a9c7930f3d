"""The contents of a checkpoint, as values and as file bytes."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from torch import Tensor

from qkv.checkpoint import manifest as manifests
from qkv.checkpoint.former_names import with_todays_names
from qkv.checkpoint.json_values import JsonValue, decode, decode_mapping, encode
from qkv.checkpoint.manifest import (
    ALTERED,
    CONFIG,
    COPY_AGAIN,
    FIGURES,
    MODEL,
    TOKENIZER,
    TRAINER_NUMBERS,
    TRAINER_TENSORS,
    Manifest,
)
from qkv.checkpoint.tensors import pack
from qkv.errors import CheckpointError
from qkv.metrics.figure import Figure


@final
@dataclass(frozen=True)
class TrainerState:
    """Everything that a training needs to resume exactly.

    Args:
        tensors: name to tensor: optimizer moments, states of random generators.
        numbers: names and numbers: step, position in the data, best so far.
    """

    tensors: Mapping[str, Tensor]
    numbers: Mapping[str, JsonValue]


@final
@dataclass(frozen=True)
class Contents:
    """The contents of a checkpoint.

    Args:
        model: name to tensor, as from `state_dict()`; tensors that share memory are stored once.
        config: names and numbers from which the model can be rebuilt.
        tokenizer: the tokenizer's JSON text, if any.
        trainer: the state needed to resume training, if any.
        figures: metrics of these weights.
    """

    model: Mapping[str, Tensor]
    config: Mapping[str, JsonValue]
    tokenizer: str | None = None
    trainer: TrainerState | None = None
    figures: Sequence[Figure] = field(default_factory=tuple)


def pack_contents(contents: Contents) -> tuple[dict[str, bytes], Manifest]:
    """Serialize a checkpoint to the bytes of its files.

    Args:
        contents: the contents of the checkpoint.

    Returns:
        The bytes of each file, and their manifest.

    Raises:
        CheckpointError: something cannot be stored; the message names it.
    """
    files: dict[str, bytes] = {}
    tied: dict[str, dict[str, str]] = {}
    files[MODEL], tied[MODEL] = pack(contents.model, "model")
    files[CONFIG] = encode(contents.config, "config")
    if contents.tokenizer is not None:
        files[TOKENIZER] = _bytes(contents.tokenizer)
    if contents.trainer is not None:
        files[TRAINER_TENSORS], tied[TRAINER_TENSORS] = pack(contents.trainer.tensors, "trainer")
        files[TRAINER_NUMBERS] = encode(contents.trainer.numbers, "trainer")
    if contents.figures:
        files[FIGURES] = encode([figure_to_json_value(figure) for figure in contents.figures], "figures")
    for name, data in files.items():
        if len(data) > manifests.LIMITS[name]:
            got, hint = f"{len(data):,} bytes", "Store less in it."
            raise CheckpointError(name, f"at most {manifests.LIMITS[name]:,} bytes", got, hint)
    manifest = manifests.describe(files, tied)
    if len(manifest.to_bytes()) > manifests.LIMIT:
        hint = "Use shorter names for the tied tensors."
        raise CheckpointError(manifests.NAME, f"at most {manifests.LIMIT:,} bytes", "more", hint)
    return files, manifest


@final
class StoredWeights(Mapping[str, Tensor]):
    """Weights on disk: their shapes are known, their numbers are read when they are first needed.

    Args:
        shapes: the shape of each tensor, by name.
        read: reads all tensors.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], read: Callable[[], dict[str, Tensor]]) -> None:
        """Store the shapes, and read nothing yet."""
        self.shapes, self.read = shapes, read
        self._tensors: dict[str, Tensor] | None = None

    def __getitem__(self, name: str) -> Tensor:
        """Return one tensor; the first call reads all of them and keeps them, which `read` alone does not."""
        if self._tensors is None:
            self._tensors = self.read()
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self.shapes)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.shapes)


def unpack_contents(folder: Path, files: Mapping[str, bytes], tensors: Mapping[str, Mapping[str, Tensor]]) -> Contents:
    """Deserialize a checkpoint from the bytes of its files.

    Args:
        folder: where they came from, for messages.
        files: the verified bytes of each file that contains no tensors; optionally without the trainer's.
        tensors: the tensors of each file of tensors.

    Returns:
        The contents.

    Raises:
        CheckpointError: a file has invalid contents.
    """
    trainer, changes = None, renamed(tensors[MODEL])
    if TRAINER_NUMBERS in files:
        numbers = decode_mapping(files[TRAINER_NUMBERS], str(folder / TRAINER_NUMBERS))
        trainer = TrainerState(_with_changed_ends(tensors[TRAINER_TENSORS], changes), numbers)
    config = with_todays_names(decode_mapping(files[CONFIG], str(folder / CONFIG)))
    figures = decode_figures(files[FIGURES], str(folder / FIGURES)) if FIGURES in files else ()
    return Contents(
        _with_changed_names(tensors[MODEL], changes), config, _text(folder, files.get(TOKENIZER)), trainer, figures
    )


_FORMER_NAME = "target_embed.weight"
_BEGINNINGS = {"embed.": "embed_source.", "target_embed.": "embed."}
"""What names of tensors began with in published encoder-decoders that have the former name, and begin with today: both
kinds of translators call the embedding of the target `embed`."""


def renamed(names: Iterable[str]) -> dict[str, str]:
    """Return the tensors of a model whose names have changed since they were stored, and today's names.

    Args:
        names: all names that are stored.

    Example:
        >>> renamed(["embed.weight", "target_embed.weight", "output.bias"])
        {'embed.weight': 'embed_source.weight', 'target_embed.weight': 'embed.weight'}
    """
    stored = list(names)
    changes = _BEGINNINGS.items() if _FORMER_NAME in stored else ()
    return {
        name: today + name.removeprefix(before)
        for before, today in changes
        for name in stored
        if name.startswith(before)
    }


def _with_changed_names(weights: Mapping[str, Tensor], changes: Mapping[str, str]) -> Mapping[str, Tensor]:
    """Return the tensors of a model under today's names."""
    if not changes:
        return weights
    if not isinstance(weights, StoredWeights):
        return {changes.get(name, name): tensor for name, tensor in weights.items()}
    shapes = {changes.get(name, name): shape for name, shape in weights.shapes.items()}
    return StoredWeights(shapes, lambda: {changes.get(name, name): x for name, x in weights.read().items()})


def _with_changed_ends(tensors: Mapping[str, Tensor], changes: Mapping[str, str]) -> Mapping[str, Tensor]:
    """Return the tensors of a trainer, which end in names of the model's, under today's names."""
    if not changes:
        return tensors
    ends = {f".{name}": f".{today}" for name, today in changes.items()}
    return {
        next((name.removesuffix(end) + today for end, today in ends.items() if name.endswith(end)), name): tensor
        for name, tensor in tensors.items()
    }


def _text(folder: Path, data: bytes | None) -> str | None:
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError as error:
        raise CheckpointError(str(folder / TOKENIZER), "UTF-8 text", str(error), COPY_AGAIN) from error


def _bytes(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise CheckpointError("tokenizer", "valid text", str(error), "Correct the tokenizer.") from error


def decode_figures(data: bytes, path: str) -> tuple[Figure, ...]:
    """Parse the figures of a checkpoint.

    Args:
        data: JSON.
        path: its name in messages.

    Returns:
        The figures.

    Raises:
        CheckpointError: it is not a list of figures.
    """
    value = decode(data, path)
    if not isinstance(value, list):
        raise CheckpointError(path, "a list of figures", type(value).__name__, ALTERED)
    return tuple(figure_from_json_value(item, path) for item in value)


def figure_to_json_value(figure: Figure) -> dict[str, JsonValue]:
    """Convert a figure to names and numbers; a value that is not finite is written by name.

    Args:
        figure: the figure.

    Returns:
        Its fields.
    """
    value = float(figure.value)
    return {
        "name": figure.name,
        "value": value if math.isfinite(value) else str(value),
        "signature": figure.signature,
        "higher_is_better": figure.higher_is_better,
    }


def figure_from_json_value(value: JsonValue, path: str) -> Figure:
    """Parse and validate the output of `figure_to_json_value`.

    Args:
        value: its fields.
        path: its name in messages.

    Returns:
        The figure.

    Raises:
        CheckpointError: it is not a figure.
    """
    match value:
        case {
            "name": str(name),
            "value": float() | "nan" | "inf" | "-inf" as number,
            "signature": str(text),
            "higher_is_better": bool(up),
        }:
            return Figure(name, float(number), text, up)
    raise CheckpointError(path, "a figure", repr(value)[:160], ALTERED)
