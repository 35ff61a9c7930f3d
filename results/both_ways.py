"""Models that write from left to right and models that write from right to left: each side proposes, both judge.

A wrong beginning leads the one side astray, a wrong end the other; what both hold likely is wrong less often.

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
    """Words from the last to the first.

    Example:
        >>> turn("a b c")
        'c b a'
    """
    return " ".join(reversed(text.split()))


def turned(pairs: Sequence[Pair]) -> list[Pair]:
    """Pairs whose targets are written from the end."""
    return [Pair(pair.source, turn(pair.target), pair.line) for pair in pairs]


def translate(ahead: Translator, back: Translator, lines: Sequence[str], beam: int) -> list[Translation]:
    """Translate lines by both sides.

    Args:
        ahead: one or more models that write words in their order.
        back: one or more that write them from the last to the first.
        lines: sources.
        beam: how many translations each side proposes.

    Returns:
        For each line the proposal with the largest sum of both sides' log-probabilities, words in their order.
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
    """How likely models hold targets that are given, the end mark included.

    Args:
        translator: one or more models; several are joined by their geometric mean.
        sources, targets: texts, one target for each source.

    Returns:
        Their log-probabilities in nats.
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
