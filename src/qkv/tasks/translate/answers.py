"""What `qkv translate` writes: translations, or lists of them with their scores."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from qkv.decode.sampling import RowKeys
from qkv.errors import on_command_line
from qkv.linalg.session import DecodingSession
from qkv.settings import options_of
from qkv.tasks.answering import Answers, Lines, answered
from qkv.tasks.drawing import Drawing, alignments
from qkv.tasks.example_run import is_example, report_outside_grammar, sentences
from qkv.tasks.length import CutCounter
from qkv.tasks.notes import as_json, note
from qkv.tasks.streams import fields_of, format_json, format_lines
from qkv.tasks.tokenizing import UnknownCounter, unknown_name
from qkv.tasks.translate.alignment_reading import AlignmentReading
from qkv.tasks.translate.decoding import Decoding, as_sampling
from qkv.tasks.translate.predict import Translation, Translator
from qkv.tasks.translate.settings import DecodingSettings, TranslateAnswers, TranslateRequest
from qkv.tasks.translate.unknown import as_unknown


def open_answers(runs: Sequence[Path], settings: TranslateAnswers) -> Answers:
    """Load one or more translators, see `qkv.tasks.task.OpenAnswers`."""
    translator = Translator.load(runs, settings.device, average=settings.average)
    translator = translator.with_columns(settings.source_col, settings.features_col)
    unknown_by = as_unknown(translator, settings.replace_unknown, settings.valid_source, settings.valid_target)
    how = _decoding(settings, unknown_by)
    examples = () if settings.shards is not None else sentences(runs)
    drawing = Drawing(settings.attention, terminal=settings.show or bool(examples))
    example, outside = all(map(is_example, runs)), False
    session = DecodingSession()  # of all answers: nothing changes the model

    def translated(parts: Iterable[Lines], file: Path | None = None) -> Iterator[str]:
        cut, keys, unknown = CutCounter(), RowKeys(), UnknownCounter(unknown_name(translator.tokenizer.source))

        def answer(lines: Lines, first: int) -> list[list[Translation]]:
            nonlocal outside
            outside = outside or (example and report_outside_grammar(lines, first, translator.tokenizer))
            return translator.translate_best(
                lines, how, attention=drawing.active, first=first, keys=keys, session=session
            )

        for first, results in answered("translating", parts, answer, file):
            if as_json():
                yield from format_json({"line": line, **_object(best)} for line, best in enumerate(results, first))
            elif how.n_best == 1:
                yield format_lines(best.text for best, *_ in results)
            else:
                yield format_lines(_listed(results, start=first))
            cut.add(all(translation.finished for translation in best) for best in results)
            unknown.add(best[0].source_tokens for best in results)
            drawing.add(alignments(best[0] for best in results))
        if outside:
            return
        unknown.report(file)
        if (message := cut.message(on_command_line("max_tokens"))) is not None:
            note(f"qkv: {message}" if file is None else f"qkv: {file}: {message}")

    def requested(texts: Sequence[str], request: TranslateRequest) -> list[Mapping[str, object]]:
        best = translator.translate_best(texts, _decoding(request, unknown_by), keys=RowKeys(), session=session)
        return list(map(_object, best))

    tabs = translator.table is not None
    return Answers(translated, drawing, tabs=tabs, examples=examples, requested=requested)


def _decoding(settings: TranslateRequest, unknown: AlignmentReading | None) -> Decoding:
    search: dict[str, Any] = {name: getattr(settings, name) for name in options_of(DecodingSettings)}
    return Decoding(**search, sampling=as_sampling(settings), unknown=unknown)


def _listed(translations: list[list[Translation]], start: int) -> Iterator[str]:
    """Format number, score and text of each translation, line by line."""
    for number, best in enumerate(translations, start):
        for translation in best:
            score = translation.score if translation.ranked is None else translation.ranked
            text = translation.text.replace("\t", " ")
            yield f"{number}\t{score:.4f}\t{text}"


def _object(best: Sequence[Translation]) -> dict[str, object]:
    """Return a line with its translations, best first."""
    translations = [{name: x for name, x in fields_of(one).items() if name != "source"} for one in best]
    return {"source": best[0].source, "translations": translations}
