"""A folder of another library's model as a checkpoint of ours: weights, tokenizer and task."""

from pathlib import Path
from typing import Any

from qkv.checkpoint.contents import Contents
from qkv.data.published import Published, of_sentencepieces
from qkv.data.tokenizer import Tokenizer
from qkv.errors import CheckpointError, DataError, error_message
from qkv.hub.families.keys import Keys
from qkv.hub.families.load import is_published, read_folder
from qkv.hub.folder import CONFIG, Folder
from qkv.tasks.trained import Trained

_TOKENIZER, _GENERATION = "tokenizer.json", "generation_config.json"
_SENTENCEPIECES = ("source.spm", "target.spm", "vocab.json")


def published_folder(run: str | Path) -> Folder | None:
    """Return the folder of a published model; None if there is another thing, or nothing."""
    path = Path(run)
    if not path.is_dir():
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
    found = read_folder(folder)
    settings = found.published
    model = {"kind": "published", "settings": settings.settings, "stored": settings.stored}
    config: dict[str, Any] = {"task": found.family.task, "model": model, "longest": found.config.context}
    if found.config.labels:
        config["labels"] = list(settings.labels)
    try:
        tokenizer = _tokenizer(folder, found.family.task == "translate")
    except DataError as error:
        raise CheckpointError(str(error)) from error
    text = None if tokenizer is None else tokenizer.to_json()
    return Trained(folder.path, Contents(found.tensors, config, text), tokenizer, found.family.task)


def _tokenizer(folder: Folder, translates: bool) -> Tokenizer | None:
    marks = _marks(folder, translates)
    if folder.has(_TOKENIZER):
        where = str(folder.path / _TOKENIZER)
        return Tokenizer.of_published(Published(folder.text(_TOKENIZER), **marks, where=where))
    if not all(folder.has(name) for name in _SENTENCEPIECES):
        return None
    source, target, numbers = _SENTENCEPIECES
    table = folder.table(numbers)
    if not all(isinstance(number, int) and 0 <= number < 1 << 31 for number in table.values()):
        hint = "Copy the folder again from its source."
        raise CheckpointError(error_message(str(folder.path / numbers), "numbers of pieces", "something else", hint))
    marks["unk"] = table.get("<unk>", marks["unk"])
    models = folder.read(source), folder.read(target)
    return Tokenizer.of_published(of_sentencepieces(*models, table, **marks, folder=str(folder.path)))


def _marks(folder: Folder, translates: bool) -> dict[str, Any]:
    """Return the special tokens that config.json and generation_config.json name; the second wins."""
    tables = [folder.table(name) for name in (CONFIG, _GENERATION) if folder.has(name)]
    table = {name: item for each in tables for name, item in each.items() if item is not None}
    keys = Keys(table, {}, str(folder.path / CONFIG))
    found = {short: keys.token(f"{short}_token_id") for short in ("pad", "bos", "eos")}
    if translates:
        start = keys.token("decoder_start_token_id")
        found["bos"] = found["pad"] if start is None else start
    if found["pad"] is None:
        found["pad"] = found["eos"]
    marks = {name: -1 if number is None else number for name, number in found.items()}
    return {**marks, "unk": -1, "others": tuple(keys.tokens("eos_token_id")[1:])}
