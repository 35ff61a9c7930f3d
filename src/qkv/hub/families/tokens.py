"""Our tokenizers as files of the library `tokenizers`, which `transformers` loads."""

import json
from collections.abc import Callable, Mapping

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from qkv.data.segments import SPECIALS, bpe_splitter
from qkv.data.tokenizer import Tokenizer
from qkv.data.vocabulary import Vocabulary
from qkv.errors import UnsupportedError, setting


def tokenizer_files(tokenizer: Tokenizer) -> dict[str, bytes]:
    """Return the files of a tokenizer.

    Args:
        tokenizer: of a model that was trained here, or a published one.

    Returns:
        Their names and bytes.

    Raises:
        UnsupportedError: the library has no such tokenizer.

    Example:
        >>> sorted(tokenizer_files(Tokenizer.learn(["abc"], kind="char")))
        ['tokenizer.json', 'tokenizer_config.json']
    """
    published = tokenizer.published
    if published is not None:
        return {"tokenizer.json": published.source.encode()} if not published.numbers else published.original()
    vocabulary = tokenizer.vocabulary
    if vocabulary.kind not in _LIBRARY:
        hint = f"Save the model alone (generator.model), or train with {setting('tokenizer', 'bpe')}."
        expected = f"one of {', '.join(_LIBRARY)}"
        raise UnsupportedError("tokenizer", expected, vocabulary.kind, hint)
    library = _LIBRARY[vocabulary.kind](vocabulary)
    steps: list[normalizers.Normalizer] = [normalizers.Lowercase()] if vocabulary.lowercase else []
    steps += [normalizers.Prepend(" ")] if vocabulary.kind == "bpe" else []
    if steps:
        library.normalizer = normalizers.Sequence(steps)
    library.add_special_tokens([AddedToken(special, normalized=False) for special in SPECIALS])
    marks = {f"{special.strip('<>')}_token": special for special in SPECIALS}
    about = {"tokenizer_class": "PreTrainedTokenizerFast", **marks, "clean_up_tokenization_spaces": False}
    return {
        "tokenizer.json": (library.to_str(pretty=True) + "\n").encode(),
        "tokenizer_config.json": (json.dumps(about, indent=1, sort_keys=True) + "\n").encode(),
    }


def _byte_pairs(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    merges = list[tuple[str, str]](vocabulary.merges)
    library = tokenizers.Tokenizer(models.BPE(vocab=_numbered(vocabulary), merges=merges))
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
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return library


def _numbered(vocabulary: Vocabulary) -> dict[str, int]:
    return {piece: number for number, piece in enumerate(vocabulary.pieces)}


_LIBRARY: Mapping[str, Callable[[Vocabulary], tokenizers.Tokenizer]] = {
    "bpe": _byte_pairs,
    "char": _characters,
    "none": _words,
}
