"""Unigram pieces: a vocabulary under which the training text is likely, and the likeliest pieces of a text.

The library counts words in a table of random order, so that sums of floating-point numbers differ in their last bits,
and so do the scores of bytes that the text seldom has. Scores are rounded, and such bytes share one, so that the same
texts give the same vocabulary in any order.
"""

import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import tokenizers
from tokenizers import models, trainers

from qkv.data.segments import SPECIALS, bpe_splitter, byte_alphabet

_DIGITS = 4
_STEP = 1e-4
"""The library counts the scores of bytes that it must keep upwards from the lowest score, by this step."""


class Pieces(NamedTuple):
    """Pieces in the order of their ids, special ones first, each with its log-probability (0 for special ones)."""

    names: tuple[str, ...]
    scores: tuple[float, ...]


def learn_pieces(texts: Iterable[str], size: int) -> Pieces:
    """Learn pieces of words in bytes; the same texts, in any order, give the same pieces.

    Args:
        texts: the training text.
        size: maximum number of pieces, with the special ones and the 256 bytes.

    Returns:
        The pieces, likeliest first.

    Source: Kudo 2018, "Subword Regularization", section 3.2.

    Example:
        >>> pieces = learn_pieces(["low lower lowest"] * 9, 270)
        >>> pieces.names[4:6]
        ('Ġlowe', 'Ġlow')
    """
    learner = tokenizers.Tokenizer(models.Unigram())
    learner.pre_tokenizer = bpe_splitter()
    alphabet = byte_alphabet()
    trainer = trainers.UnigramTrainer(
        vocab_size=size,
        special_tokens=list(SPECIALS),
        unk_token=SPECIALS[-1],
        initial_alphabet=list(alphabet),
        show_progress=False,
    )
    learner.train_from_iterator((" " + text for text in texts if text), trainer)
    scores_of = {name: score for name, score in json.loads(learner.to_str())["model"]["vocab"] if name not in SPECIALS}
    least = min(scores_of.values())
    threshold = least + (len(alphabet) + 1) * _STEP
    scores = {
        name: round(least if name in alphabet and score < threshold else score, _DIGITS)
        for name, score in scores_of.items()
    }
    scores = {**dict.fromkeys(alphabet, round(least, _DIGITS)), **scores}
    # The library can return more pieces than the size; every byte remains, or some text could not be written.
    longer = sorted((name for name in scores if name not in alphabet), key=lambda name: (-scores[name], name))
    pieces = [*alphabet, *longer[: size - len(SPECIALS) - len(alphabet)]]
    names = sorted(pieces, key=lambda name: (-scores[name], name))
    return Pieces((*SPECIALS, *names), (*[0.0] * len(SPECIALS), *(scores[name] for name in names)))


def unigram_encoder(names: Sequence[str], scores: Sequence[float], unknown: int) -> tokenizers.Tokenizer:
    """Build what splits a text into its likeliest pieces.

    Args:
        names, scores: as in `Pieces`.
        unknown: the id of the unknown piece.

    Example:
        >>> pieces = learn_pieces(["low lower lowest"] * 9, 270)
        >>> unigram_encoder(*pieces, unknown=3).encode(" lower").tokens
        ['Ġlowe', 'r']
    """
    # A space is outside the byte alphabet: text that looks like a special token must stay text.
    specials = [f" {name}" for name in names[: len(SPECIALS)]]
    encoder = tokenizers.Tokenizer(
        models.Unigram(list(zip([*specials, *names[len(SPECIALS) :]], scores, strict=True)), unknown)
    )
    encoder.pre_tokenizer = bpe_splitter()
    return encoder
