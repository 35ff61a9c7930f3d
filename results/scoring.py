"""BLEU as each rival measured it, beside detokenized cased sacreBLEU."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from qkv.metrics.figure import Figure
from qkv.metrics.translation import bleu, tokenized_bleu


def score(hypotheses: Sequence[str], references: Sequence[str], language: str) -> list[Figure]:
    """Score translations in two ways.

    Args:
        hypotheses: what the model wrote.
        references: what people wrote.
        language: of both, for spaCy's blank tokenizer.

    Returns:
        Lower-cased BLEU over spaCy's words without smoothing, as bentrevett/pytorch-seq2seq measures it; cased
        sacreBLEU with its signature.
    """
    rival = tokenized_bleu(words(hypotheses, language), words(references, language))
    return [rival, bleu(hypotheses, references)]


def words(lines: Sequence[str], language: str) -> list[list[str]]:
    """Lower-cased words by spaCy's blank tokenizer of a language."""
    tokenizer = _blank(language).tokenizer
    return [[token.text for token in tokenizer(line.lower())] for line in lines]


@lru_cache
def _blank(language: str) -> Any:
    import spacy

    return spacy.blank(language)
