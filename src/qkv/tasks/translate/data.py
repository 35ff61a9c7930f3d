"""Pairs of sentences as tokens, and the tokenizer that is learned from them."""

from collections.abc import Sequence

from qkv.data.batches import Example
from qkv.data.corpus import Pair
from qkv.data.open_vocabulary import encode_pair
from qkv.data.report import expect_some_left, refuse
from qkv.data.tokenizer import Tokenizer
from qkv.errors import DataError, Place
from qkv.tasks.corpora.pairs import PairsInMemory
from qkv.tasks.length import longer_allowed
from qkv.tasks.tokenizing import learn_tokenizer
from qkv.tasks.translate.settings import TranslateTokenizer


def learn_tokenizers(pairs: Sequence[Pair], settings: TranslateTokenizer) -> Tokenizer:
    """Learn one vocabulary for sources and targets, or one for each.

    Args:
        pairs: the training pairs.
        settings: tokenizer settings; the size is that of each vocabulary.

    Example:
        >>> settings = TranslateTokenizer(source_tokenizer="char", target_tokenizer="word", minimum=1)
        >>> tokenizer = learn_tokenizers([Pair("ab", "x y", 1)], settings)
        >>> tokenizer.source.encode("ba"), tokenizer.encode("y x")
        ([5, 4], [5, 4])
    """
    if settings.shared:
        return learn_tokenizer(settings, (text for pair in pairs for text in (pair.source, pair.target)))
    source = learn_tokenizer(settings, (pair.source for pair in pairs), settings.kinds[0])
    target = learn_tokenizer(settings, (pair.target for pair in pairs), settings.kinds[1])
    return Tokenizer(target.vocabulary, source.vocabulary)


def examples_of(
    pairs: Sequence[Pair], tokenizer: Tokenizer, longest: int, names: tuple[str, str], copies: bool
) -> tuple[list[Pair], PairsInMemory]:
    """Tokenize pairs, and return those that are short enough.

    Args:
        pairs: the pairs.
        tokenizer: text to tokens.
        longest: maximum tokens of a side.
        names: of what holds the sources and the targets, for messages.
        copies: whether out-of-vocabulary source words get their own ids, for a model that copies.
    """
    examples, kept = [], []
    for pair in pairs:
        source, target = encode_pair(pair.source, pair.target, tokenizer, copies=copies)
        for ids, name in zip((source, target), names, strict=True):
            if len(ids) > longest:
                hint = "Shorten or remove the line, " + longer_allowed(len(ids), tokenizer)
                refuse("long", DataError(Place(name, pair.line), f"at most {longest} tokens", f"{len(ids)}", hint))
                break
        else:
            examples.append(Example(source, target, pair.line))
            kept.append(pair)
    if not kept:
        expect_some_left()
    return kept, PairsInMemory(examples, tokenizer)
