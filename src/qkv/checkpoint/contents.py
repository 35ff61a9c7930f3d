"""What a checkpoint holds, as values and as the bytes of its files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from torch import Tensor

from qkv.checkpoint import manifest as manifests
from qkv.checkpoint.figures import decode_figures, encode_figures
from qkv.checkpoint.manifest import CONFIG, FIGURES, MODEL, TOKENIZER, TRAINER_NUMBERS, TRAINER_TENSORS, Manifest
from qkv.checkpoint.plain import Plain, decode_mapping, encode
from qkv.checkpoint.tensors import pack, unpack
from qkv.errors import CheckpointError, error_message
from qkv.metrics.figure import Figure

_AGAIN = "Use another checkpoint of this run, or get this one again from where it came."


@final
@dataclass(frozen=True)
class TrainerState:
    """All that a training needs to go on as if it had never stopped.

    Args:
        tensors: name to tensor: moments of the optimizer, states of random generators.
        numbers: names and numbers: step, position in the data, best so far.
    """

    tensors: Mapping[str, Tensor]
    numbers: Mapping[str, Plain]


@final
@dataclass(frozen=True)
class Contents:
    """What a checkpoint holds.

    Args:
        model: name to tensor, as of `state_dict()`; tensors that share their memory are stored once.
        config: names and numbers from which the model can be built again.
        tokenizer: the tokenizer's own JSON text, where there is one.
        trainer: what training needs to go on, where it may.
        figures: what was measured on these weights.
    """

    model: Mapping[str, Tensor]
    config: Mapping[str, Plain]
    tokenizer: str | None = None
    trainer: TrainerState | None = None
    figures: Sequence[Figure] = field(default_factory=tuple)


def pack_contents(contents: Contents) -> tuple[dict[str, bytes], Manifest]:
    """Turn what a checkpoint holds into the bytes of its files.

    Args:
        contents: what it holds.

    Returns:
        For each file its bytes, and the manifest of them.

    Raises:
        CheckpointError: something that cannot be stored; it is named.
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
        files[FIGURES] = encode_figures(contents.figures)
    for name, data in files.items():
        if len(data) > manifests.LIMITS[name]:
            got, hint = f"{len(data):,} bytes", "Store less in it."
            raise CheckpointError(error_message(name, f"at most {manifests.LIMITS[name]:,} bytes", got, hint))
    manifest = manifests.describe(files, tied)
    if len(manifest.to_bytes()) > manifests.LIMIT:
        hint = "Give the tied tensors shorter names."
        raise CheckpointError(error_message(manifests.NAME, f"at most {manifests.LIMIT:,} bytes", "more", hint))
    return files, manifest


def unpack_contents(folder: Path, files: Mapping[str, bytes], manifest: Manifest) -> Contents:
    """Read what a checkpoint holds from the bytes of its files.

    Args:
        folder: where they came from, for messages.
        files: for each file its bytes, verified; without the trainer's, if they are not wanted.
        manifest: the list they were verified against.

    Returns:
        What it holds.

    Raises:
        CheckpointError: a file is not what its name says.
    """

    def tensors(name: str) -> dict[str, Tensor]:
        return unpack(files[name], manifest.tied.get(name, {}), str(folder / name))

    trainer = None
    if TRAINER_NUMBERS in files:
        numbers = decode_mapping(files[TRAINER_NUMBERS], str(folder / TRAINER_NUMBERS))
        trainer = TrainerState(tensors(TRAINER_TENSORS), numbers)
    config = decode_mapping(files[CONFIG], str(folder / CONFIG))
    figures = decode_figures(files[FIGURES], str(folder / FIGURES)) if FIGURES in files else ()
    return Contents(tensors(MODEL), config, _text(folder, files.get(TOKENIZER)), trainer, figures)


def _text(folder: Path, data: bytes | None) -> str | None:
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError as error:
        raise CheckpointError(error_message(str(folder / TOKENIZER), "UTF-8 text", str(error), _AGAIN)) from error


def _bytes(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise CheckpointError(error_message("tokenizer", "valid text", str(error), "Correct the tokenizer.")) from error
