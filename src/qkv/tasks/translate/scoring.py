"""Scoring translations, in training and on files."""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

from qkv.data.corpus import Pair
from qkv.data.marked_pieces import joined_words, piece_marks
from qkv.data.normal_forms import normalize
from qkv.data.words import split_words
from qkv.errors import ConfigError, on_command_line, setting
from qkv.metrics.edits import edit_distance, word_error_rate
from qkv.metrics.figure import Figure
from qkv.metrics.matches import exact_match
from qkv.metrics.translation import WMT, BleuTokenizer, bleu, chrf, sentence_chrf
from qkv.tasks.length import CutCounter, naming_line
from qkv.tasks.notes import note
from qkv.tasks.pairs import PairSources
from qkv.tasks.task import Scored
from qkv.tasks.tokenizing import report_unknown
from qkv.tasks.translate.decoding import Decoding
from qkv.tasks.translate.settings import SearchSettings, TranslateEvaluation


def score_translations(translator: Any, files: TranslateEvaluation) -> Scored:
    """Translate the sources of files and compare; arguments and errors as for `Translator.score_files`."""
    if translator.table is None and files.table is not None:
        hint = "Omit the columns: only translators that were trained on some have them."
        raise ConfigError(setting("source_col"), "a model that was trained on columns", "one of plain text", hint)
    table = files.with_default(translator.table)
    how = Decoding(**{item.name: getattr(files, item.name) for item in fields(SearchSettings)})
    sources = PairSources.of(files) or PairSources()
    pairs = sources.read(table)
    # Figures compare symbols; the output file has words as the table writes them.
    translator = translator.with_table(None)
    report_unknown((translator.encode(pair.source).ids for pair in pairs), translator.tokenizer.source.unk)
    with naming_line(sources.names[0], [pair.line for pair in pairs]):
        translations = translator.translate_fully([pair.source for pair in pairs], how)
    cut = CutCounter(translation.finished for translation in translations)
    if (message := cut.message(on_command_line("max_tokens"))) is not None:
        note(f"qkv: {message}")
    hypotheses = [translation.text for translation in translations]
    compared = _words(hypotheses, pairs)
    figures = _figures(compared, files.bleu_tokenize or translator.bleu_tokenize)
    lines = hypotheses if table is None else map(table.target_text, hypotheses)
    written, references, _ = compared
    sides = list(zip(written, references, strict=True))
    credits: dict[str, Callable[[], list[float]]] = {
        "chrf": lambda: sentence_chrf(written, references),
        "exact_match": lambda: [float(text == reference) for text, reference in sides],
        # All systems have the same references, so that their rates differ as the means of their edits do.
        "word_error_rate": lambda: [-float(edit_distance(*map(split_words, side))) for side in sides],
    }
    return Scored(figures, lines, credits)


def judge(hypotheses: Sequence[str], pairs: Sequence[Pair], bleu_tokenizer: BleuTokenizer = WMT) -> list[Figure]:
    """Score translations; used by both training and `qkv evaluate`.

    Args:
        hypotheses: the model's output for each source.
        pairs: the sources and their references.
        bleu_tokenizer: what separates words for BLEU.

    Returns:
        sacreBLEU, chrF, exact match and word error rate (the phone error rate, for phones separated by spaces). Pieces
        that another library marked are joined to words first, which the signatures say.
    """
    return _figures(_words(hypotheses, pairs), bleu_tokenizer)


def _figures(compared: tuple[list[str], list[str], str], bleu_tokenizer: BleuTokenizer) -> list[Figure]:
    """Score what `_words` returns."""
    written, references, joined = compared
    first = bleu(written, references, bleu_tokenizer)
    figures = [first, *(figure(written, references) for figure in (chrf, exact_match, word_error_rate))]
    return [replace(figure, signature=figure.signature + joined) for figure in figures]


def _words(hypotheses: Sequence[str], pairs: Sequence[Pair]) -> tuple[list[str], list[str], str]:
    """Return translations and references as they are compared, and what their signature says of it."""
    # Both sides in composed form, so that combining accents do not count as errors.
    sides = hypotheses, [pair.target for pair in pairs]
    written, references = ([normalize("NFC", text) for text in side] for side in sides)
    # A model that was trained on pieces may be scored on words, which SentencePiece's rule would run together.
    marks = piece_marks(references) or piece_marks(written)
    joined = "" if marks is None else f"|joined:{marks.library}"
    return joined_words(written, marks), joined_words(references), joined
