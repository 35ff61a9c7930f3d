"""Translation metrics: BLEU as papers report it today, chrF, and BLEU on tokens as in older papers."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from qkv.errors import ConfigError
from qkv.metrics.figure import Figure, require_same_length

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU

BleuTokenizer = Literal[
    "13a", "intl", "char", "zh", "ja-mecab", "ko-mecab", "flores101", "flores200", "spBLEU-1K", "none"
]
"""How sacreBLEU separates words; those after "ko-mecab" download a model of pieces when they are first used."""
WMT: BleuTokenizer = "13a"
"""The tokenizer of WMT, and the default."""
_PACKAGES: Mapping[str, str] = MappingProxyType({"ja-mecab": "sacrebleu[ja]", "ko-mecab": "sacrebleu[ko]"})
_ORDER = 4


def bleu(hypotheses: Sequence[str], references: Sequence[str], tokenizer: BleuTokenizer = WMT) -> Figure:
    """Compute sacreBLEU: cased, on detokenized text, by default with WMT's tokenization (13a).

    Args:
        hypotheses: one detokenized translation per sentence.
        references: one reference per sentence.
        tokenizer: what separates words.

    Returns:
        The figure "bleu" from 0 to 100, with sacreBLEU's signature, which names the tokenizer.

    Raises:
        ConfigError: a package or a model that the tokenizer needs is missing.
        DataError: the numbers of sentences differ or are zero.

    Source: Papineni et al. 2002, "BLEU: a method for automatic evaluation of machine translation"; Post 2018, "A call
    for clarity in reporting BLEU scores".

    Example:
        >>> round(bleu(["The cat sat on the mat."], ["The cat lay on the mat."]).value, 2)
        48.89
    """
    require_same_length(hypotheses, references)
    metric = _metric(tokenizer)
    score = metric.corpus_score(list(hypotheses), [list(references)])
    return Figure("bleu", float(score.score), str(metric.get_signature()))


def measures_bleu(references: Sequence[str], tokenizer: BleuTokenizer = WMT) -> bool:
    """Return whether BLEU can measure translations: at least half of the references have four words, as it counts them.

    Raises:
        ConfigError: as for `bleu`.

    Example:
        >>> measures_bleu(["我在家看书。"]), measures_bleu(["我在家看书。"], "zh")
        (False, True)
    """
    separated = _metric(tokenizer).tokenizer
    long = sum(len(separated(text).split()) >= _ORDER for text in references)
    return 2 * long >= len(references)


def _metric(tokenizer: BleuTokenizer) -> "BLEU":
    # Slow to import, and only needed for scoring.
    from sacrebleu.metrics.bleu import BLEU

    try:
        # `force` only silences a warning about text that looks tokenized, which one-word outputs also trigger.
        return BLEU(force=True, tokenize=tokenizer)
    except (ImportError, RuntimeError) as error:
        package = _PACKAGES.get(tokenizer, "sentencepiece")
        hint = f"Install it: pip install '{package}'; char and 13a need nothing."
        raise ConfigError("bleu_tokenize", f'the package {package} for "{tokenizer}"', "none", hint) from error
    except OSError as error:
        hint = "Connect to the network once, or choose another: char, zh and 13a need no model."
        expected = f'the model of pieces for "{tokenizer}", which sacreBLEU downloads'
        raise ConfigError("bleu_tokenize", expected, str(error)[:200] or type(error).__name__, hint) from error


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> Figure:
    """Compute sacreBLEU's chrF2: the F-score of character n-grams up to 6, with recall weighted twice.

    Args:
        hypotheses: one detokenized translation per sentence.
        references: one reference per sentence.

    Returns:
        The figure "chrf" from 0 to 100, with sacreBLEU's signature.

    Raises:
        DataError: the numbers of sentences differ or are zero.

    Source: Popović 2015, "chrF: character n-gram F-score for automatic MT evaluation".

    Example:
        >>> chrf(["The cat sat."], ["The cat sat."]).value
        100.0
    """
    from sacrebleu.metrics.chrf import CHRF

    require_same_length(hypotheses, references)
    metric = CHRF()
    score = metric.corpus_score(list(hypotheses), [list(references)])
    return Figure("chrf", float(score.score), str(metric.get_signature()))


def sentence_chrf(hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
    """Return the chrF2 of each sentence, from 0 to 100; arguments and errors as for `chrf`.

    Example:
        >>> sentence_chrf(["The cat sat.", "No."], ["The cat sat.", "Yes!"])
        [100.0, 0.0]
    """
    from sacrebleu.metrics.chrf import CHRF

    require_same_length(hypotheses, references)
    metric = CHRF()
    pairs = zip(hypotheses, references, strict=True)
    return [float(metric.sentence_score(hypothesis, [reference]).score) for hypothesis, reference in pairs]


def tokenized_bleu(
    hypotheses: Sequence[Sequence[str]],
    references: Sequence[Sequence[str]],
    *,
    lowercase: bool = False,
    tokenizer: str = "given",
) -> Figure:
    """Compute corpus BLEU on given tokens: no smoothing, n-grams up to 4, one reference.

    Same as the Hugging Face `evaluate` metric "bleu" and torchtext's `bleu_score`; and as tensor2tensor, except where
    an n-gram order has no match, which is smoothed there. It depends on the tokenization, so it is only comparable with
    figures for the same one.

    Args:
        hypotheses: the tokens of one translation per sentence.
        references: the tokens of one reference per sentence.
        lowercase: whether to lower-case every token first.
        tokenizer: description of the tokenization for the signature.

    Returns:
        The figure "tokenized_bleu" from 0 to 100: 0 if any n-gram order has no match.

    Raises:
        DataError: the numbers of sentences differ or are zero.

    Source: Papineni et al. 2002, section 2.3, corpus level.

    Example:
        >>> round(tokenized_bleu(["the cat sat on a mat".split()], ["the cat sat on the mat".split()]).value, 2)
        53.73
    """
    require_same_length(hypotheses, references)
    matches, possible = [0] * _ORDER, [0] * _ORDER
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        ours, theirs = _tokens(hypothesis, lowercase), _tokens(reference, lowercase)
        for order in range(1, _ORDER + 1):
            overlap = _ngrams(ours, order) & _ngrams(theirs, order)
            matches[order - 1] += overlap.total()
            possible[order - 1] += max(0, len(ours) - order + 1)
    length = sum(map(len, hypotheses))
    value = 100 * _brevity(length, sum(map(len, references))) * _precision(matches, possible)
    case = "lc" if lowercase else "mixed"
    return Figure("tokenized_bleu", value, f"nrefs:1|case:{case}|eff:no|tok:{tokenizer}|smooth:none|order:{_ORDER}")


def _tokens(sentence: Sequence[str], lowercase: bool) -> tuple[str, ...]:
    return tuple(token.lower() for token in sentence) if lowercase else tuple(sentence)


def _ngrams(tokens: tuple[str, ...], order: int) -> Counter[tuple[str, ...]]:
    return Counter(tokens[start : start + order] for start in range(len(tokens) - order + 1))


def _precision(matches: Sequence[int], possible: Sequence[int]) -> float:
    """Compute the geometric mean of the clipped precisions."""
    if min(matches) == 0:
        return 0.0
    return math.exp(sum(math.log(m / p) for m, p in zip(matches, possible, strict=True)) / len(matches))


def _brevity(length: int, reference_length: int) -> float:
    if length == 0:
        return 0.0
    return math.exp(min(0.0, 1 - reference_length / length))
