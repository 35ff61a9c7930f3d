"""Scoring a trained model on files."""

import sys
from collections.abc import Sequence
from pathlib import Path

from qkv.checkpoint.disk import replace_file
from qkv.data.text import read_text
from qkv.errors import ConfigError, error_message, harmless
from qkv.metrics.figure import Figure
from qkv.tasks.cut import tell_cut
from qkv.tasks.decoding import Decoding
from qkv.tasks.generator import Generator
from qkv.tasks.labeled_text import Kind, Text, read_texts
from qkv.tasks.labeler import Classifier, Tagger
from qkv.tasks.labeling import judge_labels
from qkv.tasks.members import members_of
from qkv.tasks.parallel import Files, read_for_scoring
from qkv.tasks.runs import open_run
from qkv.tasks.translation import judge
from qkv.tasks.translator import Translator

_GREEDY = Decoding()


def evaluate_translation(
    run: Path, files: Files, device: str = "cpu", out: Path | None = None, how: Decoding = _GREEDY
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
    if trained.table is None and files.table is not None:
        hint = "Omit the columns, or train with them."
        raise ConfigError(
            error_message("--source-col", "a model that was trained on columns", "one of plain text", hint)
        )
    table = files.over(trained.table)
    pairs = read_for_scoring(files, table)
    # Figures are those of symbols; a file gets them as the table writes them.
    translator = trained.over(None)
    found = translator.translate_fully([pair.source for pair in pairs], how)
    if (told := tell_cut([each.finished for each in found], "--max-tokens")) is not None:
        print(f"qkv: {told}", file=sys.stderr)  # noqa: T201
    hypotheses = [each.text for each in found]
    if out is not None:
        written = hypotheses if table is None else map(table.target_text, hypotheses)
        replace_file(out, "".join(f"{line}\n" for line in written).encode("utf-8"))
    return judge(hypotheses, pairs)


def evaluate_text(run: Path, text: Path, others: Files, device: str = "cpu") -> list[Figure]:
    """Score a language model on a file of plain text.

    Args:
        run: run folder, or one checkpoint in it.
        text: the file.
        others: files of other tasks; must not be given.
        device: compute device.

    Returns:
        The metrics.

    Raises:
        CheckpointError: the checkpoint is invalid, or is not a language model.
        DataError: the file is invalid.
        ConfigError: other files are given too.
    """
    if others != Files():
        hint = "A language model only reads text."
        raise ConfigError(error_message("--text", "no other file", "other files too", hint))
    return Generator.load(run, device).evaluate(read_text(text))


def evaluate(
    run: Path, files: Files, device: str = "cpu", out: Path | None = None, how: Decoding = _GREEDY
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
    task = open_run(members_of(run)[0]).task
    if task != "translate" and how != _GREEDY:
        hint = "Only translations use it."
        raise ConfigError(error_message("--beam", "no decoding setting", f"one with a run of `qkv train {task}`", hint))
    if task != "translate" and files.table is not None:
        hint = "Only translations have columns."
        raise ConfigError(error_message("--source-col", "no columns", f"some with a run of `qkv train {task}`", hint))
    match task:
        case "classify":
            return evaluate_labels("classify", run, _one_file(files), device, out)
        case "tag":
            return evaluate_labels("tag", run, _one_file(files), device, out)
        case "generate":
            hint = "A language model is scored on plain text."
            raise ConfigError(error_message("--text", "a file of plain text", "none", hint))
        case _:
            return evaluate_translation(run, files, device, out, how)


def _one_file(files: Files) -> Path | None:
    if files.source is not None or files.target is not None:
        hint = "Pass the labeled texts as one file: --data FILE."
        raise ConfigError(
            error_message("--source", "--data FILE for a classifier or tagger", "--source or --target", hint)
        )
    return files.data


def evaluate_labels(
    kind: Kind, run: Path, data: Path | None, device: str = "cpu", out: Path | None = None
) -> list[Figure]:
    """Score a classifier or tagger.

    Args:
        kind: "classify" or "tag".
        run: run folder, or one checkpoint in it.
        data: a labeled file.
        device: compute device.
        out: where to write the predicted labels, in the format of the file, or None.

    Returns:
        The metrics. Labels that training never saw count as wrong and are reported on standard error.

    Raises:
        CheckpointError: the checkpoint is invalid.
        DataError: the file is invalid; the message gives file and line.
    """
    texts = read_texts(kind, data)
    model = Tagger.load(run, device) if kind == "tag" else Classifier.load(run, device)
    _tell_unseen(texts, model.labels, data)
    found = _labels(model, texts)
    if out is not None:
        lines = (line for text, labels in zip(texts, found, strict=True) for line in _written(kind, text, labels))
        replace_file(out, "".join(f"{line}\n" for line in lines).encode("utf-8"))
    return judge_labels(found, [text.labels for text in texts])


def _tell_unseen(texts: Sequence[Text], labels: Sequence[str], data: Path | None) -> None:
    unseen = [(text.line, label) for text in texts for label in text.labels if label not in labels]
    if unseen:
        line, label = unseen[0]
        told = (
            f'qkv: {data}:{line}: training never saw the label "{label}"; such labels, {len(unseen):,} of '
            f"{sum(len(text.labels) for text in texts):,}, count as wrong."
        )
        print(harmless(told), file=sys.stderr)  # noqa: T201


def _labels(model: Tagger | Classifier, texts: Sequence[Text]) -> list[tuple[str, ...]]:
    if isinstance(model, Tagger):
        return model.tag([text.words for text in texts])
    return [(label,) for label in model.classify([text.words[0] for text in texts])]


def _written(kind: Kind, text: Text, labels: Sequence[str]) -> list[str]:
    if kind == "classify":
        return [f"{labels[0]}\t{text.words[0]}"]
    return [*(f"{word}\t{label}" for word, label in zip(text.words, labels, strict=True)), ""]
