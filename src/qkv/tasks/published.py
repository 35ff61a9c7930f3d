"""A folder of another library's model as a checkpoint of ours: weights, tokenizer and task."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qkv.checkpoint.contents import Contents
from qkv.data.published import Published, of_sentencepieces
from qkv.data.tokenizer import Tokenizer
from qkv.errors import CheckpointError, DataError
from qkv.files import as_path
from qkv.hub.families.keys import SettingsReader
from qkv.hub.families.load import PublishedConfig, is_published, read_folder
from qkv.hub.folder import CONFIG, INDEX, Folder
from qkv.tasks.trained import Trained

_TOKENIZER, _GENERATION = "tokenizer.json", "generation_config.json"
_SENTENCEPIECES = ("source.spm", "target.spm", "vocab.json")


def published_folder(run: str | Path) -> Folder | None:
    """Return the folder of a published model; None if the path is anything else."""
    path = as_path(run, "run")
    if not os.path.isdir(path):
        return None
    folder = Folder(path)
    return folder if is_published(folder) else None


def open_published(folder: Folder) -> Trained:
    """Read the model of another library.

    Args:
        folder: its folder.

    Returns:
        The same as for a checkpoint of ours; without a tokenizer if the folder has none.

    Raises:
        CheckpointError: the folder does not hold what it should.
    """
    published = read_folder(folder)
    settings = published.published
    longest = published.config.context
    config: dict[str, Any] = {"task": published.family.task, "model": settings.to_table(), "longest": longest}
    if published.config.labels:
        config["labels"] = list(settings.labels)
    try:
        tokenizer = _tokenizer(folder, published.family.task == "translate", published.config.size)
    except DataError as error:
        raise error.as_kind(CheckpointError) from error
    text = None if tokenizer is None else tokenizer.to_json()
    return Trained(folder.path, Contents(published.tensors, config, text), tokenizer, published.family.task)


def published_digest(folder: Folder) -> str:
    """Return one sha256 over every file that `open_published` reads, and no other.

    Args:
        folder: the folder of a published model.

    Raises:
        CheckpointError: the folder does not hold what it should.
    """
    tokenizers = (_TOKENIZER,) if folder.has(_TOKENIZER) else _SENTENCEPIECES
    named = (name for name in (CONFIG, _GENERATION, INDEX, *tokenizers) if folder.has(name))
    return folder.digest({*named, *folder.weights().files})


def vocabulary_of(config: Mapping[str, Any]) -> int | None:
    """Return how many tokens a published model reads, by the configuration of a run that continued from it.

    Args:
        config: the checkpoint's configuration.

    Returns:
        The number; None for a model of ours, whose tokenizer says it.

    Raises:
        CheckpointError, ConfigError: the model's settings are not those of a family.
    """
    match config.get("model"):
        case {"kind": "published", "settings": str(settings), **rest}:
            stored = rest.get("stored")
            return PublishedConfig(settings, stored if isinstance(stored, str) else "").described().config.size
    return None


def _tokenizer(folder: Folder, translates: bool, limit: int) -> Tokenizer | None:
    marks = _marks(folder, translates, limit)
    if folder.has(_TOKENIZER):
        where = str(folder.path / _TOKENIZER)
        return Tokenizer.of_published(Published(folder.text(_TOKENIZER), **marks, where=where, limit=limit))
    if not all(folder.has(name) for name in _SENTENCEPIECES):
        return None
    source, target, numbers = _SENTENCEPIECES
    table = folder.table(numbers)
    marks["unk"] = table.get("<unk>", marks["unk"])
    models = folder.read(source), folder.read(target)
    return Tokenizer.of_published(of_sentencepieces(*models, table, **marks, folder=str(folder.path), limit=limit))


def _marks(folder: Folder, translates: bool, limit: int) -> dict[str, Any]:
    """Return the special tokens that config.json and generation_config.json name; the second wins.

    A number that the model does not read is that of no token: small models for tests have them.
    """
    tables = [folder.table(name) for name in (CONFIG, _GENERATION) if folder.has(name)]
    table = {name: item for settings in tables for name, item in settings.items() if item is not None}
    keys = SettingsReader(table, {}, str(folder.path / CONFIG))
    numbers = {short: keys.token(f"{short}_token_id") for short in ("pad", "bos", "eos")}
    if translates:
        start = keys.token("decoder_start_token_id")
        numbers["bos"] = numbers["pad"] if start is None else start
    marks = {name: -1 if number is None or number >= limit else number for name, number in numbers.items()}
    if marks["pad"] < 0:
        marks["pad"] = marks["eos"]
    more_ends = tuple(number for number in keys.tokens("eos_token_id")[1:] if number < limit)
    return {**marks, "unk": -1, "others": more_ends}
