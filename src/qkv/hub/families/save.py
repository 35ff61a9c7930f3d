"""Writing a folder that `transformers` loads."""

import json
from pathlib import Path
from typing import Any

from torch import nn

from qkv.checkpoint.disk import new_folder, write_file
from qkv.checkpoint.json_values import JsonValue, decode_mapping, encode
from qkv.checkpoint.tensors import pack
from qkv.data.tokenizer import Tokenizer
from qkv.errors import UnsupportedError
from qkv.files import absolute, as_path
from qkv.hub.families.counterpart import Counterpart, counterpart
from qkv.hub.families.library_tokenizer import tokenizer_files
from qkv.hub.families.load import family_of
from qkv.hub.families.rules import to_theirs
from qkv.hub.folder import CONFIG, WEIGHTS
from qkv.models.language_model import LanguageModel
from qkv.models.parts import TransformerParts
from qkv.models.translator import TransformerTranslator

_GENERATION = "generation_config.json"


def save(model: Any, folder: str | Path, *, tokenizer: Tokenizer | None = None) -> Path:
    """Write a model in the form of `transformers`: config.json, model.safetensors and the tokenizer.

    A model that was read from such a folder, fine-tuned or not, is written as its own family. A language model that was
    trained here becomes GPT-NeoX (rotary positions) or GPT-2 (learned, sinusoidal or none), a translator Pegasus (norms
    before each sublayer) or Marian (after). All compute the same as here.

    Args:
        model: what `qkv.load` returns, or a model alone.
        folder: a folder that does not exist yet, or is empty.
        tokenizer: of a model alone; None for none.

    Returns:
        The folder.

    Raises:
        UnsupportedError: a part of the model or of the tokenizer has no counterpart; the message names it.
        CheckpointError: the folder has other contents, or cannot be written.

    Example:
        >>> import tempfile
        >>> from qkv.models.configs.language_model import DecoderConfig
        >>> model = LanguageModel(DecoderConfig(size=20, width=16, heads=2, feed_forward=32, layers=1))
        >>> with tempfile.TemporaryDirectory() as parent:
        ...     sorted(path.name for path in save(model, Path(parent, "neox")).iterdir())
        ['config.json', 'model.safetensors']
    """
    files = files_of(model, tokenizer)
    with new_folder(absolute(folder)) as temporary:
        for name, content in files.items():
            write_file(temporary / name, content)
    return as_path(folder, "folder")


def files_of(model: Any, tokenizer: Tokenizer | None = None) -> dict[str, bytes]:
    """Return the files that `save` writes, by name, for the same arguments."""
    network: nn.Module = model if isinstance(model, nn.Module) else model.model
    tokenizer = getattr(model, "tokenizer", None) if tokenizer is None else tokenizer
    if len(getattr(model, "models", ())) > 1:
        raise UnsupportedError("model", "one model", "an ensemble", "Save each of its models.")
    written = _counterpart(network)
    family = family_of(written.table, CONFIG)
    theirs = {**to_theirs(family.rules(written.config), written.tensors, written.config), **written.extra}
    if written.table.get("tie_word_embeddings") is False:
        # Without tied weights, the file holds a copy for each part that shares them here.
        copies = {copy: theirs[original].clone() for copy, original in family.copies if original in theirs}
        theirs = {**copies, **theirs}
    files = {} if tokenizer is None else tokenizer_files(tokenizer)
    table = {**written.table, "architectures": [family.class_name], "dtype": "float32", "torch_dtype": "float32"}
    imported = None if tokenizer is None else tokenizer.imported
    if tokenizer is not None and imported is None:
        special_tokens = {name: number for name, number in written.table.items() if name.endswith("_token_id")}
        files[_GENERATION] = encode({**special_tokens, "suppress_tokens": list(tokenizer.never_written)}, _GENERATION)
    elif tokenizer is not None and imported is not None:
        begin = "decoder_start" if family.task == "translate" else "bos"
        named = {"pad": tokenizer.pad, begin: tokenizer.bos, "eos": tokenizer.eos, "forced_bos": imported.forced}
        generation: dict[str, JsonValue] = {f"{name}_token_id": number for name, number in named.items() if number >= 0}
        if imported.others:
            generation["eos_token_id"] = [tokenizer.eos, *imported.others]
        if imported.never:
            generation["suppress_tokens"] = list(imported.never)
        files[_GENERATION] = encode(generation, _GENERATION)
    data, _ = pack({name: tensor.contiguous() for name, tensor in theirs.items()}, WEIGHTS)
    return files | {CONFIG: encode(table, CONFIG), WEIGHTS: _with_format(data)}


def _counterpart(model: nn.Module) -> Counterpart:
    parts = getattr(model, "parts", None)
    if isinstance(parts, TransformerParts) and parts.settings:
        return Counterpart(decode_mapping(parts.settings.encode(), CONFIG), parts, model.state_dict())
    if isinstance(model, LanguageModel | TransformerTranslator):
        return counterpart(model)
    hint = "See docs/how_to/export.md for what `qkv export` writes of it."
    raise UnsupportedError("model", "one that a family of transformers computes", type(model).__name__, hint)


def _with_format(data: bytes) -> bytes:
    """Add the note to a safetensors file's header that `transformers` asks for."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[8 + size :]
