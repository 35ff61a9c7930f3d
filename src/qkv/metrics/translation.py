"""How close translations come to those of people: BLEU and chrF."""

from collections.abc import Sequence

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from qkv.metrics.figure import Figure


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Figure:
    """Cased, detokenized sacreBLEU, 0 to 100.

    Args:
        hypotheses: one detokenized line for each reference.
        references: what people wrote.

    Returns:
        The figure with sacreBLEU's signature.

    Source: Papineni et al. 2002; Post 2018, "A Call for Clarity in Reporting BLEU Scores".

    Example:
        >>> round(bleu(["A dog runs on the grass."], ["A dog runs on the grass."]).value)
        100
    """
    metric = BLEU()
    score = metric.corpus_score(list(hypotheses), [list(references)])
    return Figure("bleu", float(score.score), str(metric.get_signature()))


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> Figure:
    """chrF2, the F-score of character n-grams, 0 to 100.

    Args:
        hypotheses: one detokenized line for each reference.
        references: what people wrote.

    Returns:
        The figure with sacreBLEU's signature.

    Source: Popović 2015, "chrF".

    Example:
        >>> round(chrf(["A dog."], ["A dog."]).value)
        100
    """
    metric = CHRF()
    score = metric.corpus_score(list(hypotheses), [list(references)])
    return Figure("chrf", float(score.score), str(metric.get_signature()))


def tokenized_bleu(hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> Figure:
    """BLEU over given tokens, without smoothing, 0 to 100.

    Args:
        hypotheses: the tokens of each line.
        references: the tokens of what people wrote.

    Returns:
        The figure with sacreBLEU's signature.

    Source: Papineni et al. 2002, eq. 3.

    Example:
        >>> round(tokenized_bleu([["a", "dog", "runs", "fast"]], [["a", "dog", "runs", "fast"]]).value)
        100
    """
    metric = BLEU(tokenize="none", smooth_method="none", force=True)
    lines = [[" ".join(tokens) for tokens in side] for side in (hypotheses, references)]
    score = metric.corpus_score(lines[0], [lines[1]])
    return Figure("tokenized_bleu", float(score.score), str(metric.get_signature()))
