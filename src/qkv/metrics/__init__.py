"""Metrics, with the same code for validation in training and for evaluation.

Rates (BLEU, chrF, accuracy, F1, error rates) are in percent.
"""

from typing import TYPE_CHECKING

from qkv._lazy import lazy

if TYPE_CHECKING:
    from qkv.metrics.alignment import (
        Links,
        alignment_error_rate,
        alignment_precision,
        alignment_recall,
        parse_alignments,
        parse_links,
    )
    from qkv.metrics.edits import character_error_rate, edit_distance, token_error_rate, word_error_rate
    from qkv.metrics.figure import Figure
    from qkv.metrics.labels import LabelReport, label_report, span_report
    from qkv.metrics.likelihood import bits_per_character, perplexity
    from qkv.metrics.matches import accuracy, exact_match, macro_f1
    from qkv.metrics.translation import bleu, chrf, tokenized_bleu

__all__ = [
    "Figure",
    "LabelReport",
    "Links",
    "accuracy",
    "alignment_error_rate",
    "alignment_precision",
    "alignment_recall",
    "bits_per_character",
    "bleu",
    "character_error_rate",
    "chrf",
    "edit_distance",
    "exact_match",
    "label_report",
    "macro_f1",
    "parse_alignments",
    "parse_links",
    "perplexity",
    "span_report",
    "token_error_rate",
    "tokenized_bleu",
    "word_error_rate",
]

__getattr__ = lazy(
    __name__,
    {
        "Figure": "qkv.metrics.figure",
        "LabelReport": "qkv.metrics.labels",
        "Links": "qkv.metrics.alignment",
        "accuracy": "qkv.metrics.matches",
        "alignment_error_rate": "qkv.metrics.alignment",
        "alignment_precision": "qkv.metrics.alignment",
        "alignment_recall": "qkv.metrics.alignment",
        "bits_per_character": "qkv.metrics.likelihood",
        "bleu": "qkv.metrics.translation",
        "character_error_rate": "qkv.metrics.edits",
        "chrf": "qkv.metrics.translation",
        "edit_distance": "qkv.metrics.edits",
        "exact_match": "qkv.metrics.matches",
        "label_report": "qkv.metrics.labels",
        "macro_f1": "qkv.metrics.matches",
        "parse_alignments": "qkv.metrics.alignment",
        "parse_links": "qkv.metrics.alignment",
        "perplexity": "qkv.metrics.likelihood",
        "span_report": "qkv.metrics.labels",
        "token_error_rate": "qkv.metrics.edits",
        "tokenized_bleu": "qkv.metrics.translation",
        "word_error_rate": "qkv.metrics.edits",
    },
)


def __dir__() -> list[str]:
    return __all__
