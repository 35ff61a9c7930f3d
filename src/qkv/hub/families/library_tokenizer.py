"""Our tokenizers in the form of the library `tokenizers`."""

import json
from collections.abc import Callable, Mapping
from unicodedata import category

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from qkv.data.segments import JOINER, JOINER_IN_TEXT, SPECIALS, bpe_splitter
from qkv.data.tokenizer import Tokenizer
from qkv.data.unigram import unigram_encoder
from qkv.data.vocabulary import Vocabulary
from qkv.data.words import SEPARATORS
from qkv.errors import UnsupportedError

Rules = list[normalizers.Normalizer]
_NORMAL_FORMS: Mapping[str, Callable[[], normalizers.Normalizer]] = {
    "NFC": normalizers.NFC,
    "NFD": normalizers.NFD,
    "NFKC": normalizers.NFKC,
    "NFKD": normalizers.NFKD,
}
_FINAL_SIGMA = r"(?<=\p{Cased}\p{Case_Ignorable}*)Σ(?!\p{Case_Ignorable}*\p{Cased})"
"""The Unicode Standard, table 3-17 (Final_Sigma)."""
_OF_WORD = r"\p{L}\p{M}\p{N}"
_UNKNOWN = SPECIALS.index("<unk>")


def tokenizer_files(tokenizer: Tokenizer) -> dict[str, bytes]:
    """Return a tokenizer as files of the library `tokenizers`, which `transformers` loads.

    Args:
        tokenizer: of a model that was trained here, or that of a published model.

    Returns:
        Their names and bytes.

    Raises:
        UnsupportedError: there are two vocabularies.

    Example:
        >>> sorted(tokenizer_files(Tokenizer.learn(["abc"], kind="char")))
        ['tokenizer.json', 'tokenizer_config.json']
    """
    if tokenizer.imported is not None:
        return plain_files(tokenizer)
    if not tokenizer.shared:
        hint = "Train with one tokenizer for both languages; or save the model alone, in Python: "
        hint += "qkv.hub.save(qkv.load(RUN).model, FOLDER)."
        raise UnsupportedError("tokenizer", "one vocabulary", "one of sources and one of targets", hint)
    library = _LIBRARY[tokenizer.vocabulary.kind](tokenizer.vocabulary)
    library.add_special_tokens([AddedToken(special, normalized=False) for special in SPECIALS])
    special_tokens = {f"{special.strip('<>')}_token": special for special in SPECIALS}
    about = {"tokenizer_class": "PreTrainedTokenizerFast", **special_tokens, "clean_up_tokenization_spaces": False}
    return {
        "tokenizer.json": _json(library),
        "tokenizer_config.json": (json.dumps(about, indent=1, sort_keys=True) + "\n").encode(),
    }


def plain_files(tokenizer: Tokenizer) -> dict[str, bytes]:
    """Return a tokenizer as files of the library `tokenizers`, in which text that spells a special token is text.

    Args:
        tokenizer: as for `tokenizer_files`.

    Returns:
        tokenizer.json, or that of targets and source_tokenizer.json; of numbered pieces the files that they are made
        from.
    """
    imported = tokenizer.imported
    if imported is not None:
        return {"tokenizer.json": imported.source.encode()} if not imported.files else imported.original()
    sides = {"tokenizer.json": tokenizer} | ({} if tokenizer.shared else {"source_tokenizer.json": tokenizer.source})
    return {name: _json(_plain(side.vocabulary)) for name, side in sides.items()}


def _json(library: tokenizers.Tokenizer) -> bytes:
    return (library.to_str(pretty=True) + "\n").encode()


def _plain(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    library = _LIBRARY[vocabulary.kind](vocabulary)
    if vocabulary.kind == "unigram":
        # Its special pieces have names that no text has.
        library.model = unigram_encoder(vocabulary.pieces, vocabulary.scores, _UNKNOWN).model
    return library


def _text_rules(vocabulary: Vocabulary) -> Rules:
    """Return what `Tokenizer.encode` does to a text first, in the same order."""
    rules: Rules = []
    if vocabulary.unicode != "none":
        rules.append(_NORMAL_FORMS[vocabulary.unicode]())
    if vocabulary.lowercase:
        # The library lower-cases each character alone, but a sigma at the end of a word has a form of its own.
        rules += [normalizers.Replace(Regex(_FINAL_SIGMA), "ς"), normalizers.Lowercase()]
    return rules


def _byte_pairs(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    merges = list[tuple[str, str]](vocabulary.merges)
    return _of_bytes(vocabulary, models.BPE(vocab=_numbered(vocabulary), merges=merges))


def _unigram(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    pieces = list(zip(vocabulary.pieces, vocabulary.scores, strict=True))
    return _of_bytes(vocabulary, models.Unigram(pieces, unk_id=_UNKNOWN))


def _of_bytes(vocabulary: Vocabulary, model: models.Model) -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(model)
    library.normalizer = normalizers.Sequence([*_text_rules(vocabulary), normalizers.Prepend(" ")])
    library.pre_tokenizer = bpe_splitter()
    library.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    return library


def _characters(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    library = _whole_tokens(vocabulary, [])
    library.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    library.decoder = decoders.Sequence([decoders.Replace("<unk>", "\ufffd"), decoders.Fuse()])
    return library


def _spaced(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    special = f"{JOINER}*(?:{'|'.join(SPECIALS)})"
    marked = normalizers.Replace(Regex(f"(?<![^{SEPARATORS}])(?={special}(?![^{SEPARATORS}]))"), JOINER)
    library = _whole_tokens(vocabulary, [marked])
    bare = decoders.Replace(Regex(rf"\A{JOINER}(?={special}\z)"), "")
    # The decoder for pieces of words puts a space before each token without its prefix; no token begins with a space.
    library.decoder = decoders.Sequence([bare, decoders.WordPiece(prefix=" ", cleanup=False), decoders.Fuse()])
    return library


def _words(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """Put a joiner wherever a mark touches its neighbor, as `qkv.data.segments.words` does."""
    pieces, letter, separator = frozenset(vocabulary.pieces), f"[{_OF_WORD}]", f"[{SEPARATORS}]"
    marks = [piece for piece in vocabulary.pieces if len(piece) == 1 and category(piece)[0] not in "LMN"]

    def joined(before: str, after: str) -> str:
        """Match the marks that have these joiners: all but those that the vocabulary only has without."""
        bare = "".join(f"\\x{{{ord(mark):X}}}" for mark in marks if f"{before}{mark}{after}" not in pieces)
        return f"[^{SEPARATORS}{_OF_WORD}{JOINER}{bare}]"

    both, first, last = joined(JOINER, JOINER), joined(JOINER, ""), joined("", JOINER)
    before = f"(?<=[^{SEPARATORS}])(?={both}{letter}|{first}(?!{letter}))"
    after = rf"(?<=[^{SEPARATORS}]{both}|\A{last}|{separator}{last})(?={letter})"
    rules: Rules = [
        normalizers.Replace(JOINER, JOINER_IN_TEXT),
        normalizers.Replace(Regex(f"{before}|{after}"), JOINER),
    ]
    library, mark = _whole_tokens(vocabulary, rules), f"{JOINER}?[^{SEPARATORS}{_OF_WORD}{JOINER}]"
    pattern = Regex(f"{mark}{JOINER}(?={letter})|{mark}|{letter}+")
    library.pre_tokenizer = pre_tokenizers.Split(pattern, "removed", invert=True)
    # The decoder for pieces of words puts a space before each token without its prefix.
    bare = [decoders.Replace(f"{JOINER} ", ""), decoders.Replace(JOINER, "")]
    library.decoder = decoders.Sequence([decoders.WordPiece(prefix=JOINER, cleanup=False), decoders.Fuse(), *bare])
    return library


def _whole_tokens(vocabulary: Vocabulary, rules: Rules) -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(models.WordLevel(_numbered(vocabulary), unk_token=SPECIALS[_UNKNOWN]))
    library.normalizer = normalizers.Sequence([*_text_rules(vocabulary), *rules])
    library.pre_tokenizer = pre_tokenizers.Split(Regex(f"[{SEPARATORS}]+"), "removed")
    return library


def _numbered(vocabulary: Vocabulary) -> dict[str, int]:
    return {piece: number for number, piece in enumerate(vocabulary.pieces)}


_LIBRARY: Mapping[str, Callable[[Vocabulary], tokenizers.Tokenizer]] = {
    "bpe": _byte_pairs,
    "unigram": _unigram,
    "char": _characters,
    "word": _words,
    "none": _spaced,
}
