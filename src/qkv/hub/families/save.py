"""Writing a folder that `transformers` loads."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from torch import nn

from qkv.checkpoint.disk import new_folder, write_file
from qkv.checkpoint.json_values import JsonValue, decode_mapping, encode
from qkv.checkpoint.tensors import pack
from qkv.data.segments import SPECIALS, bpe_splitter
from qkv.data.tokenizer import Tokenizer
from qkv.data.vocabulary import OF_BYTES, Vocabulary
from qkv.data.words import SEPARATORS
from qkv.errors import UnsupportedError, setting
from qkv.files import absolute, as_path
from qkv.hub.families.counterpart import Counterpart, counterpart
from qkv.hub.families.load import family_of
from qkv.hub.families.rules import to_theirs
from qkv.hub.folder import CONFIG, WEIGHTS
from qkv.models.language_model import LanguageModel
from qkv.models.parts import TransformerParts
from qkv.models.translator import TransformerTranslator

_GENERATION = "generation_config.json"
_NORMAL_FORMS: Mapping[str, Callable[[], normalizers.Normalizer]] = {
    "NFC": normalizers.NFC,
    "NFD": normalizers.NFD,
    "NFKC": normalizers.NFKC,
    "NFKD": normalizers.NFKD,
}
_FINAL_SIGMA = r"(?<=\p{Cased}\p{Case_Ignorable}*)Σ(?!\p{Case_Ignorable}*\p{Cased})"
"""The Unicode Standard, table 3-17 (Final_Sigma)."""
_ALONE = "or save the model alone, in Python: qkv.hub.save(qkv.load(RUN).model, FOLDER)."


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
    if tokenizer is not None and tokenizer.imported is None:
        special_tokens = {name: number for name, number in written.table.items() if name.endswith("_token_id")}
        files[_GENERATION] = encode({**special_tokens, "suppress_tokens": list(tokenizer.never_written)}, _GENERATION)
    elif tokenizer is not None:
        begin = "decoder_start" if family.task == "translate" else "bos"
        named = {"pad": tokenizer.pad, begin: tokenizer.bos, "eos": tokenizer.eos}
        generation: dict[str, JsonValue] = {f"{name}_token_id": number for name, number in named.items() if number >= 0}
        if tokenizer.imported is not None and tokenizer.imported.others:
            generation["eos_token_id"] = [tokenizer.eos, *tokenizer.imported.others]
        if tokenizer.imported is not None and tokenizer.imported.never:
            generation["suppress_tokens"] = list(tokenizer.imported.never)
        files[_GENERATION] = encode(generation, _GENERATION)
    data, _ = pack({name: tensor.contiguous() for name, tensor in theirs.items()}, WEIGHTS)
    files |= {CONFIG: encode(table, CONFIG), WEIGHTS: _with_format(data)}
    with new_folder(absolute(folder)) as temporary:
        for name, content in files.items():
            write_file(temporary / name, content)
    return as_path(folder, "folder")


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


def tokenizer_files(tokenizer: Tokenizer) -> dict[str, bytes]:
    """Return a tokenizer as files of the library `tokenizers`, which `transformers` loads.

    Args:
        tokenizer: of a model that was trained here, or that of a published model.

    Returns:
        Their names and bytes.

    Raises:
        UnsupportedError: the library has no such tokenizer.

    Example:
        >>> sorted(tokenizer_files(Tokenizer.learn(["abc"], kind="char")))
        ['tokenizer.json', 'tokenizer_config.json']
    """
    imported = tokenizer.imported
    if imported is not None:
        return {"tokenizer.json": imported.source.encode()} if not imported.files else imported.original()
    vocabulary = tokenizer.vocabulary
    if not tokenizer.shared:
        hint = f"Train with one tokenizer for both languages; {_ALONE}"
        raise UnsupportedError("tokenizer", "one vocabulary", "one of sources and one of targets", hint)
    if vocabulary.kind not in _LIBRARY:
        hint = "Train with " + setting("tokenizer", "bpe") + f"; {_ALONE}"
        expected = f"one of {', '.join(_LIBRARY)}"
        raise UnsupportedError("tokenizer", expected, vocabulary.kind, hint)
    library = _LIBRARY[vocabulary.kind](vocabulary)
    if rules := _text_rules(vocabulary):
        library.normalizer = normalizers.Sequence(rules)
    library.add_special_tokens([AddedToken(special, normalized=False) for special in SPECIALS])
    special_tokens = {f"{special.strip('<>')}_token": special for special in SPECIALS}
    about = {"tokenizer_class": "PreTrainedTokenizerFast", **special_tokens, "clean_up_tokenization_spaces": False}
    return {
        "tokenizer.json": (library.to_str(pretty=True) + "\n").encode(),
        "tokenizer_config.json": (json.dumps(about, indent=1, sort_keys=True) + "\n").encode(),
    }


def _text_rules(vocabulary: Vocabulary) -> list[normalizers.Normalizer]:
    """Return what `Tokenizer.encode` does to a text first, in the same order."""
    rules: list[normalizers.Normalizer] = []
    if vocabulary.unicode != "none":
        rules.append(_NORMAL_FORMS[vocabulary.unicode]())
    if vocabulary.lowercase:
        # The library lower-cases each character alone, but a sigma at the end of a word has a form of its own.
        rules += [normalizers.Replace(Regex(_FINAL_SIGMA), "ς"), normalizers.Lowercase()]
    if vocabulary.kind in OF_BYTES:
        rules.append(normalizers.Prepend(" "))
    return rules


def _byte_pairs(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    merges = list[tuple[str, str]](vocabulary.merges)
    return _of_bytes(models.BPE(vocab=_numbered(vocabulary), merges=merges))


def _unigram(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    pieces = list(zip(vocabulary.pieces, vocabulary.scores, strict=True))
    return _of_bytes(models.Unigram(pieces, unk_id=SPECIALS.index("<unk>")))


def _of_bytes(model: models.Model) -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(model)
    library.pre_tokenizer = bpe_splitter()
    library.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    return library


def _characters(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    library = _words(vocabulary)
    library.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    library.decoder = decoders.Fuse()
    return library


def _words(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(models.WordLevel(_numbered(vocabulary), unk_token=SPECIALS[-1]))
    library.pre_tokenizer = pre_tokenizers.Split(Regex(f"[{SEPARATORS}]+"), "removed")
    return library


def _numbered(vocabulary: Vocabulary) -> dict[str, int]:
    return {piece: number for number, piece in enumerate(vocabulary.pieces)}


_LIBRARY: Mapping[str, Callable[[Vocabulary], tokenizers.Tokenizer]] = {
    "bpe": _byte_pairs,
    "unigram": _unigram,
    "char": _characters,
    "none": _words,
}
