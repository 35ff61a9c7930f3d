"""Scoring a trained model on files."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

from qkv.checkpoint.disk import replace_file
from qkv.data.pointing import parse_pairs
from qkv.data.table import read_table
from qkv.data.text import read_text
from qkv.errors import ConfigError, DataError, Place, on_command_line, setting
from qkv.metrics.figure import Figure
from qkv.metrics.translation import WMT, BleuTokenizer
from qkv.settings import build
from qkv.tasks.classify.data import Labeling, TextAndLabels, encode_words, read_texts
from qkv.tasks.classify.objective import judge_labels
from qkv.tasks.classify.predict import Classifier
from qkv.tasks.generate.predict import Generator
from qkv.tasks.length import CutCounter
from qkv.tasks.notes import note
from qkv.tasks.pairs import PairSources
from qkv.tasks.point.predict import ElementPointer
from qkv.tasks.regress.predict import Regressor
from qkv.tasks.runs import load_trained
from qkv.tasks.streams import format_lines
from qkv.tasks.tag.data import read_texts as read_sentences
from qkv.tasks.tag.predict import Tagger
from qkv.tasks.tokenizing import report_unknown
from qkv.tasks.translate.decoding import Decoding
from qkv.tasks.translate.members import members_of
from qkv.tasks.translate.objective import judge
from qkv.tasks.translate.predict import Translator
from qkv.tasks.translate.settings import TranslateFiles

_GREEDY = Decoding()


def evaluate_translation(
    run: Path, files: TranslateFiles, device: str = "cpu", out: Path | None = None, how: Decoding = _GREEDY
) -> list[Figure]:
    """Score a translation model.

    Args:
        run: run folder, or one checkpoint in it.
        files: sources and their translations.
        device: compute device.
        out: where to write the translations, or None.
        how: decoding settings.

    Returns:
        The metrics. Translations that were cut are reported on standard error.

    Raises:
        CheckpointError: the checkpoint is invalid.
        ConfigError: columns are given for a model of plain text.
        DataError: a file is invalid; the message gives file and line.
    """
    trained = Translator.load(run, device)
    if trained.table is None:
        _expect_no_columns(files, "a model that was trained on columns", "one of plain text")
    table = files.with_default(trained.table)
    sources = _sources(files)
    pairs = sources.read(table)
    # Figures compare symbols; the output file has words as the table writes them.
    translator = trained.with_table(None)
    lines = [pair.line for pair in pairs]
    report_unknown((translator.encode(pair.source).ids for pair in pairs), translator.tokenizer.source.unk)
    with _naming_line(sources.names[0], lines):
        translations = translator.translate_fully([pair.source for pair in pairs], how)
    cut = CutCounter(translation.finished for translation in translations)
    if (message := cut.message(on_command_line("max_tokens"))) is not None:
        note(f"qkv: {message}")
    hypotheses = [translation.text for translation in translations]
    if out is not None:
        written = hypotheses if table is None else map(table.target_text, hypotheses)
        # A model of bytes can write a line feed, which must not shift the lines below.
        replace_file(out, format_lines(written).encode("utf-8"))
    return judge(hypotheses, pairs, files.bleu_tokenize or _bleu_tokenizer(run))


def _bleu_tokenizer(run: Path) -> BleuTokenizer:
    """Return what separated words for BLEU in a training."""
    stored = load_trained(members_of(run)[0]).contents.config.get("bleu_tokenize")
    return build(TranslateFiles, {"bleu_tokenize": stored}, "config.json").bleu_tokenize or WMT


@contextmanager
def _naming_line(file: object, lines: Sequence[int]) -> Iterator[None]:
    """Name the file and the line in an error about the text of some number, counted from 1."""
    try:
        yield
    except DataError as error:
        if error.file is not None or error.line is None:
            raise
        raise error.about(Place(file, lines[error.line - 1])) from None


def _sources(files: TranslateFiles) -> PairSources:
    return PairSources.of(files) or PairSources()


def _expect_no_columns(files: TranslateFiles, expected: str, got: str) -> None:
    if files.table is not None:
        hint = "Omit the columns: only translators that were trained on some have them."
        raise ConfigError(setting("source_col"), expected, got, hint)


def evaluate_text(
    run: Path,
    text: Path,
    others: TranslateFiles,
    device: str = "cpu",
    out: Path | None = None,
    how: Decoding = _GREEDY,
) -> list[Figure]:
    """Score a language model on a file of plain text.

    Args:
        run: run folder, or one checkpoint in it.
        text: the file.
        others: files of other tasks; must not be given.
        device: compute device.
        out: must not be given, because a language model writes no answers here.
        how: must be the default.

    Returns:
        The metrics.

    Raises:
        CheckpointError: the checkpoint is invalid, or is not a language model.
        DataError: the file is invalid.
        ConfigError: other files, an output file or settings of decoding are given too.
    """
    _expect_no_bleu(others, "generate")
    if others != TranslateFiles():
        hint = "A language model only reads text."
        raise ConfigError(setting("text"), "no other file", "other files too", hint)
    if out is not None:
        hint = "A language model is scored by the probability of each token: it writes nothing."
        raise ConfigError(setting("out"), f"no output file with {setting('text')}", str(out), hint)
    _expect_decoding(how, "generate")
    return Generator.load(run, device).evaluate(read_text(text))


def evaluate(
    run: Path, files: TranslateFiles, device: str = "cpu", out: Path | None = None, how: Decoding = _GREEDY
) -> list[Figure]:
    """Score a model on files of its task.

    Args:
        run: run folder, or one checkpoint in it.
        files: in the format of the task's training.
        device: compute device.
        out: where to write the model's output, or None.
        how: decoding settings of a translator; must be the default for other tasks.

    Returns:
        The metrics.

    Raises:
        CheckpointError: the checkpoint is invalid.
        DataError: a file is invalid; the message gives file and line.
        ConfigError: the task does not accept these files or settings.
    """
    task = load_trained(members_of(run)[0]).task
    _expect_decoding(how, task)
    if task != "translate":
        _expect_no_bleu(files, task)
        _expect_no_columns(files, "no columns", f"some with a run of `qkv train {task}`")
    match task:
        case "point":
            return evaluate_pointing(run, files, device, out, how.beam)
        case "regress":
            return evaluate_regression(run, _one_file(files), out)
        case "classify":
            return evaluate_labels("classify", run, _one_file(files), device, out)
        case "tag":
            return evaluate_labels("tag", run, _one_file(files), device, out)
        case "generate":
            hint = "A language model is scored on plain text."
            raise ConfigError(setting("text"), "a file of plain text", "none", hint)
        case _:
            return evaluate_translation(run, files, device, out, how)


def _expect_decoding(how: Decoding, task: str) -> None:
    """Refuse a setting of decoding that a task does not use.

    Raises:
        ConfigError: there is one; the message names it.
    """
    used = {"translate": {field.name for field in fields(Decoding)}, "point": {"beam"}}.get(task, set())
    for field in fields(Decoding):
        if field.name not in used and getattr(how, field.name) != field.default:
            hint = "Only translations use it, and pointer networks a beam."
            raise ConfigError(setting(field.name), "no setting of decoding", f"a run of `qkv train {task}`", hint)


def _expect_no_bleu(files: TranslateFiles, task: str) -> None:
    """Refuse a tokenizer of BLEU for a task that is scored otherwise."""
    if files.bleu_tokenize is not None:
        hint = "Only translations have BLEU: omit it."
        raise ConfigError(setting("bleu_tokenize"), "a run of `qkv train translate`", f"one of `{task}`", hint)


def evaluate_pointing(
    run: Path, files: TranslateFiles, device: str = "cpu", out: Path | None = None, beam: int = 1
) -> list[Figure]:
    """Score a pointer network.

    Args:
        run: run folder, or one checkpoint in it.
        files: elements and their positions.
        device: compute device.
        out: where to write the positions, or None.
        beam: beam width.

    Returns:
        The metrics.

    Raises:
        CheckpointError: the checkpoint is invalid.
        DataError: a file is invalid; the message gives file and line.
    """
    sources, pointer = _sources(files), ElementPointer.load(run, device)
    width = pointer.model.config.features if pointer.kind == "numbers" else None
    items, _ = parse_pairs(sources.read(), sources.names, pointer.kind, width)
    if pointer.vocabulary is not None:
        report_unknown([pointer.vocabulary.ids(item.elements) for item in items], 0, "elements")
    positions, figures = pointer.evaluate(items, beam)
    if out is not None:
        replace_file(out, "".join(f"{' '.join(map(str, row))}\n" for row in positions).encode("utf-8"))
    return figures


def evaluate_regression(run: Path, data: Path | None, out: Path | None = None) -> list[Figure]:
    """Score a regression.

    Args:
        run: run folder, or one checkpoint in it.
        data: a table with inputs and target.
        out: where to write the predictions, one per line, or None.

    Returns:
        The metrics.

    Raises:
        CheckpointError: the checkpoint is invalid.
        DataError: the file is invalid; the message gives file and line.
        ConfigError: no file is given, or a column does not exist.
    """
    if data is None:
        raise ConfigError(setting("data"), setting("data", "FILE"), "none", "A table with the columns of training.")
    predicted, figures = Regressor.load(run).evaluate(read_table(data))
    if out is not None:
        replace_file(out, "".join(f"{number:.10g}\n" for number in predicted).encode("utf-8"))
    return list(figures)


def _one_file(files: TranslateFiles) -> Path | None:
    if files.source is not None or files.target is not None:
        hint = f"Pass everything as one file: {setting('data', 'FILE')}."
        raise ConfigError(
            setting("source"),
            f"{setting('data', 'FILE')} for this task",
            f"{setting('source')} or {setting('target')}",
            hint,
        )
    return files.data if files.data is None else Path(str(files.data))


def evaluate_labels(
    kind: Labeling, run: Path, data: Path | None, device: str = "cpu", out: Path | None = None
) -> list[Figure]:
    """Score a classifier or tagger.

    Args:
        kind: "classify" or "tag".
        run: run folder, or one checkpoint in it.
        data: a labeled file.
        device: compute device.
        out: where to write the predicted labels, or None: label<TAB>text on each line whatever the order of the
            file, or word<TAB>tag with an empty line after each sentence; both can be trained on.

    Returns:
        The metrics. Labels that training never saw count as wrong and are reported on standard error.

    Raises:
        CheckpointError: the checkpoint is invalid.
        DataError: the file is invalid; the message gives file and line.
    """
    texts = read_texts(data) if kind == "classify" else read_sentences(data)
    model = Tagger.load(run, device) if kind == "tag" else Classifier.load(run, device)
    _report_unseen_labels(texts, model.labels, data)
    report_unknown((encode_words(text.words, model.tokenizer)[0] for text in texts), model.tokenizer.unk)
    with _naming_line(data, [text.line for text in texts]):
        predicted = _labels(model, texts)
    if out is not None:
        lines = (
            line for text, labels in zip(texts, predicted, strict=True) for line in _output_lines(kind, text, labels)
        )
        replace_file(out, "".join(f"{line}\n" for line in lines).encode("utf-8"))
    return judge_labels(predicted, [text.labels for text in texts])


def _report_unseen_labels(texts: Sequence[TextAndLabels], labels: Sequence[str], data: Path | None) -> None:
    unseen = [(text.line, label) for text in texts for label in text.labels if label not in labels]
    if unseen:
        line, label = unseen[0]
        message = (
            f'qkv: {data}:{line}: training never saw the label "{label}"; such labels, {len(unseen):,} of '
            f"{sum(len(text.labels) for text in texts):,}, count as wrong."
        )
        note(message)


def _labels(model: Tagger | Classifier, texts: Sequence[TextAndLabels]) -> list[tuple[str, ...]]:
    if isinstance(model, Tagger):
        return model.tag([text.words for text in texts])
    return [(label,) for label in model.classify([text.words[0] for text in texts])]


def _output_lines(kind: Labeling, text: TextAndLabels, labels: Sequence[str]) -> list[str]:
    if kind == "classify":
        return [f"{labels[0]}\t{text.words[0]}"]
    return [*(f"{word}\t{label}" for word, label in zip(text.words, labels, strict=True)), ""]
