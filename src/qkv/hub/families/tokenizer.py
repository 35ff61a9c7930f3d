"""The tokenizer in the folder of a published model, with the special tokens that the folder names."""

import json
from base64 import b64encode
from typing import Any

from qkv.data.imported_tokenizer import FLAGS, ImportedTokenizer, with_flags
from qkv.data.numbered_pieces import FILES, REQUIRED
from qkv.data.tokenizer import Tokenizer
from qkv.data.vocabulary import parse
from qkv.errors import CheckpointError, DataError
from qkv.hub.families.family import Family
from qkv.hub.families.keys import SettingsReader
from qkv.hub.folder import CONFIG, Folder

_TOKENIZER, _TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
_GENERATION = "generation_config.json"


def read_tokenizer(folder: Folder, family: Family, limit: int) -> Tokenizer | None:
    """Return the tokenizer of a model, from tokenizer.json or, of Marian and M2M-100, from SentencePiece models.

    Args:
        folder: the model's folder.
        family: its family.
        limit: the number of tokens that the model reads.

    Returns:
        The tokenizer with the special tokens that the folder names; None if the folder has none.

    Raises:
        CheckpointError: a file is not what it should be.
    """
    try:
        return _tokenizer(folder, family, limit)
    except DataError as error:
        raise error.as_kind(CheckpointError) from error


def tokenizer_file_names(folder: Folder) -> set[str]:
    """Return the names of the files that `read_tokenizer` reads in a folder, apart from config.json."""
    tokenizers = (_TOKENIZER, _TOKENIZER_CONFIG) if folder.has(_TOKENIZER) else FILES
    return {name for name in (_GENERATION, *tokenizers) if folder.has(name)}


def _tokenizer(folder: Folder, family: Family, limit: int) -> Tokenizer | None:
    special_tokens = _special_tokens(folder, family, limit)
    if folder.has(_TOKENIZER):
        where = str(folder.path / _TOKENIZER)
        source = _with_language(with_flags(folder.text(_TOKENIZER), _flags(folder), where), folder)
        return Tokenizer.of_imported(ImportedTokenizer(source, **special_tokens, where=where, limit=limit))
    if not any(all(map(folder.has, names)) for names in REQUIRED):
        return None
    files = {name: b64encode(folder.read(name)).decode() for name in FILES if folder.has(name)}
    imported = ImportedTokenizer("", files=files, **special_tokens, where=str(folder.path), limit=limit)
    return Tokenizer.of_imported(imported)


_LANGUAGES = {
    "Nllb": ("eng_Latn", "{}", True),
    "MBart": ("en_XX", "{}", False),
    "MBart50": ("en_XX", "{}", True),
    "M2M100": ("en", "__{}__", True),
}
"""For classes of tokenizers the usual language of sources, its token, and whether that is before the text or after its
end.
"""


def _with_language(source: str, folder: Folder) -> str:
    """Return a tokenizer.json with the code of a source's language, where tokenizer_config.json's class puts it."""
    table = folder.table(_TOKENIZER_CONFIG) if folder.has(_TOKENIZER_CONFIG) else {}
    name = f"{table.get('tokenizer_class')}".removesuffix("Fast").removesuffix("Tokenizer")
    if name not in _LANGUAGES:
        return source
    usual, form, before = _LANGUAGES[name]
    code, end = form.format(table.get("src_lang") or usual), _content(table.get("eos_token") or "</s>")
    document: Any = parse(source, str(folder.path / _TOKENIZER))
    added = document.get("added_tokens") if isinstance(document, dict) else None
    ids = {_content(token): token.get("id") for token in added or () if isinstance(token, dict)}
    for token in (code, end):
        if token not in ids:
            where, hint = f"{folder.path / _TOKENIZER_CONFIG}: src_lang", "Codes are those of tokenizer.json."
            raise CheckpointError(where, "a language code of the tokenizer", ascii(token)[:80], hint)
    text = {"Sequence": {"id": "A", "type_id": 0}}
    first, last = ({"SpecialToken": {"id": token, "type_id": 0}} for token in (code, end))
    single = [first, text, last] if before and not table.get("legacy_behaviour") else [text, last, first]
    special = {token: {"id": token, "ids": [ids[token]], "tokens": [token]} for token in (code, end)}
    pair = [*single, {"Sequence": {"id": "B", "type_id": 0}}]
    document["post_processor"] = {
        "type": "TemplateProcessing",
        "single": single,
        "pair": pair,
        "special_tokens": special,
    }
    return json.dumps(document, ensure_ascii=False)


def _content(token: Any) -> str:
    """Return the text of a token, which may be a table with more."""
    return str(token.get("content") if isinstance(token, dict) else token)


def _flags(folder: Folder) -> dict[str, bool | None]:
    """Return the flags of tokenizer_config.json, which win over tokenizer.json, as in `transformers`.

    Its plain class, which takes tokenizer.json as it is, reads none of them.
    """
    table = folder.table(_TOKENIZER_CONFIG) if folder.has(_TOKENIZER_CONFIG) else {}
    if table.get("tokenizer_class") in ("PreTrainedTokenizerFast", "TokenizersBackend"):
        return {}
    keys = SettingsReader(table, {}, str(folder.path / _TOKENIZER_CONFIG))
    flags: dict[str, bool | None] = {name: keys.flag(name) for name in FLAGS if table.get(name) is not None}
    # In tokenizer_config.json, null means that accents are stripped if text is lower-cased.
    return flags | {name: None for name in ("strip_accents",) if name in table and name not in flags}


def _special_tokens(folder: Folder, family: Family, limit: int) -> dict[str, Any]:
    """Return the special tokens that config.json and generation_config.json name; the second wins.

    A number that the model does not read is that of no token: small models for tests have them.
    """
    table = folder.table(CONFIG)
    if folder.has(_GENERATION):
        table |= {name: item for name, item in folder.table(_GENERATION).items() if item is not None}
    keys = family.settings(table, str(folder.path / CONFIG))
    numbers = {short: keys.token(f"{short}_token_id") for short in ("pad", "bos", "eos")}
    if family.task == "translate":
        starts = keys.token("decoder_start_token_id"), numbers["bos"], numbers["pad"]
        numbers["bos"] = next((start for start in starts if start is not None), None)
    special_tokens = {name: -1 if number is None or number >= limit else number for name, number in numbers.items()}
    if special_tokens["pad"] < 0:
        special_tokens["pad"] = special_tokens["eos"]
    forced = keys.token("forced_bos_token_id") if family.task == "translate" else None
    special_tokens["forced"] = -1 if forced is None or forced >= limit else forced
    more_ends = tuple(number for number in keys.tokens("eos_token_id")[1:] if number < limit)
    # A forbidden sequence of several tokens rules out no single token, so only those of one token count.
    words = [word[0] for word in keys.token_lists("bad_words_ids") if len(word) == 1]
    never = tuple(number for number in (*keys.tokens("suppress_tokens"), *words) if number < limit)
    return {**special_tokens, "unk": -1, "others": more_ends, "never": never}
