"""The steps from the scores of one query to its weights, formatted."""

from qkv.normalizers.base import Normalizer
from qkv.normalizers.steps import NormalizedRow, equation_of, weighing
from qkv.view.answers.stage import Stage, stage_of, written


def weight_stages(normalizer: Normalizer, row: NormalizedRow) -> list[Stage]:
    """Return the stages from scores to weights; the last stage is the layer's own weights.

    Args:
        normalizer: the normalizer of one head.
        row: its scores and weights.

    Returns:
        The stages.
    """
    weights = row.weights.double()[row.keys]
    equation = equation_of(normalizer)
    if not len(row.seen()):
        note = "All keys are masked for this query: all weights are 0."
        return [Stage("weights", "w", equation, "row", weights, note, of_weights=True)]
    before = weighing(normalizer, row)
    stages = [stage_of(step) for step in before.steps]
    filled = (lambda i: written(before.filled(row, i))) if before.text else None
    return [*stages, Stage("weights", "w", equation, "row", weights, filled=filled, of_weights=True)]
