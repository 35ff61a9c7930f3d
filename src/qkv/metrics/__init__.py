"""Metrics, with the same code for validation in training and for evaluation.

Rates (BLEU, chrF, accuracy, F1, error rates) are in percent.
"""

from typing import TYPE_CHECKING

from qkv._lazy import lazy

if TYPE_CHECKING:
    from qkv.metrics.alignment import Links as Links
    from qkv.metrics.alignment import alignment_error_rate as alignment_error_rate
    from qkv.metrics.alignment import alignment_precision as alignment_precision
    from qkv.metrics.alignment import alignment_recall as alignment_recall
    from qkv.metrics.alignment import parse_alignments as parse_alignments
    from qkv.metrics.alignment import parse_links as parse_links
    from qkv.metrics.edits import character_error_rate as character_error_rate
    from qkv.metrics.edits import edit_distance as edit_distance
    from qkv.metrics.edits import token_error_rate as token_error_rate
    from qkv.metrics.edits import word_error_rate as word_error_rate
    from qkv.metrics.figure import Figure as Figure
    from qkv.metrics.labels import LabelReport as LabelReport
    from qkv.metrics.labels import label_report as label_report
    from qkv.metrics.labels import span_report as span_report
    from qkv.metrics.likelihood import bits_per_character as bits_per_character
    from qkv.metrics.likelihood import perplexity as perplexity
    from qkv.metrics.matches import accuracy as accuracy
    from qkv.metrics.matches import exact_match as exact_match
    from qkv.metrics.matches import macro_f1 as macro_f1
    from qkv.metrics.translation import bleu as bleu
    from qkv.metrics.translation import chrf as chrf
    from qkv.metrics.translation import tokenized_bleu as tokenized_bleu


__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "qkv.metrics.alignment": "Links alignment_error_rate alignment_precision alignment_recall parse_alignments "
        "parse_links",
        "qkv.metrics.edits": "character_error_rate edit_distance token_error_rate word_error_rate",
        "qkv.metrics.figure": "Figure",
        "qkv.metrics.labels": "LabelReport label_report span_report",
        "qkv.metrics.likelihood": "bits_per_character perplexity",
        "qkv.metrics.matches": "accuracy exact_match macro_f1",
        "qkv.metrics.translation": "bleu chrf tokenized_bleu",
    },
)
