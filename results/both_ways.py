"""Combine models that write left to right with models that write right to left: each side proposes, both score.

An early mistake misleads one side, a late mistake the other; what both find likely is wrong less often.

Source: Liu et al. 2016, "Agreement on Target-Bidirectional Neural Machine Translation", section 3.2.
"""

from collections.abc import Sequence
from dataclasses import replace

from qkv.data.batches import collate_sources
from qkv.data.corpus import Pair
from qkv.decode.ensemble import Ensemble
from qkv.decode.forced import forced
from qkv.tasks.decoding import Decoding
from qkv.tasks.translator import Translation, Translator

_MEAN = "log_probability"
_TEXTS = 500


def turn(text: str) -> str:
    """Reverse the words of a text.

    Example:
        >>> turn("a b c")
        'c b a'
    """
    return " ".join(reversed(text.split()))


def turned(pairs: Sequence[Pair]) -> list[Pair]:
    """Return pairs with reversed targets."""
    return [Pair(pair.source, turn(pair.target), pair.line) for pair in pairs]


def translate(ahead: Translator, back: Translator, lines: Sequence[str], beam: int) -> list[Translation]:
    """Translate lines with both sides.

    Args:
        ahead: one or more models that write left to right.
        back: one or more models that write right to left.
        lines: sources.
        beam: number of translations that each side proposes.

    Returns:
        For each line the proposal with the largest sum of both sides' log-probabilities, words in normal order.
    """
    how = Decoding(beam, length_penalty=0.0, n_best=beam, mean=_MEAN)
    found = zip(ahead.translate_best(lines, how), back.translate_best(lines, how), strict=True)
    proposals = [[*{each.text: each for each in (*ours, *map(_turned, theirs))}.values()] for ours, theirs in found]
    places = [place for place, each in enumerate(proposals) for _ in each]
    texts = [each.text for line in proposals for each in line]
    sources = [lines[place] for place in places]
    ours, theirs = log_probabilities(ahead, sources, texts), log_probabilities(back, sources, list(map(turn, texts)))
    totals = iter(map(sum, zip(ours, theirs, strict=True)))
    return [max(((next(totals), each) for each in line), key=lambda pair: pair[0])[1] for line in proposals]


def log_probabilities(translator: Translator, sources: Sequence[str], targets: Sequence[str]) -> list[float]:
    """Return the log-probabilities of given targets, end token included.

    Args:
        translator: one or more models; several are combined by their geometric mean.
        sources, targets: texts, one target for each source.

    Returns:
        Log-probabilities in nats.
    """
    model, marks = Ensemble(translator.models, _MEAN), translator.tokenizer
    found: list[float] = []
    for first in range(0, len(sources), _TEXTS):
        some = slice(first, first + _TEXTS)
        ids, lengths = collate_sources([marks.encode(text) for text in sources[some]], marks.pad)
        wanted = [[*marks.encode(text), marks.eos] for text in targets[some]]
        found += [each.score for each in forced(model, ids, lengths, wanted, bos=marks.bos, eos=marks.eos)]
    return found


def _turned(found: Translation) -> Translation:
    return replace(found, text=turn(found.text))
