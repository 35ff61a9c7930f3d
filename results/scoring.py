"""BLEU as each baseline's authors measured it, and detokenized cased sacreBLEU."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

from qkv.metrics.figure import Figure
from qkv.metrics.translation import bleu, tokenized_bleu

Words = Literal["spacy", "moses"]


def score(hypotheses: Sequence[str], references: Sequence[str], language: str, kind: Words = "spacy") -> list[Figure]:
    """Score translations in two ways.

    Args:
        hypotheses: model outputs.
        references: human translations.
        language: language of both, for the tokenizer.
        kind: the baseline's tokenizer: "spacy" as in bentrevett/pytorch-seq2seq, "moses" as in LividWo/Revisit-MMT.

    Returns:
        Lower-cased BLEU over these words without smoothing; cased sacreBLEU with its signature.
    """
    as_published = tokenized_bleu(*(words(lines, language, kind) for lines in (hypotheses, references)), tokenizer=kind)
    return [as_published, bleu(hypotheses, references)]


def words(lines: Sequence[str], language: str, kind: Words = "spacy") -> list[list[str]]:
    """Split lines into lower-cased words.

    Args:
        lines: raw text.
        language: its language.
        kind: "spacy" for the blank tokenizer of a language; "moses" for Moses' tokenizer after its normalization of
            punctuation. The references of Multi30k's test of 2016 then have 12,103 German words, the same number as in
            Revisit-MMT's log.

    Returns:
        The words of each line.

    Example:
        >>> words(["Ein Hund läuft."], "de", "moses")
        [['ein', 'hund', 'läuft', '.']]
    """
    if kind == "moses":
        normalizer, tokenizer = _moses(language)
        return [tokenizer.tokenize(normalizer.normalize(line.lower()), escape=False) for line in lines]
    blank = _blank(language).tokenizer
    return [[token.text for token in blank(line.lower())] for line in lines]


@lru_cache
def _moses(language: str) -> tuple[Any, Any]:
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    return MosesPunctNormalizer(language), MosesTokenizer(language)


@lru_cache
def _blank(language: str) -> Any:
    import spacy

    return spacy.blank(language)
