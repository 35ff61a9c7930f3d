"""A trained model with a text, or a recorded trace, as a scene, and the viewer on it."""

import gc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from qkv.data.batches import collate_sources, device_of
from qkv.data.corpus import decode
from qkv.data.open_vocabulary import pieces_open
from qkv.data.table import parse_table
from qkv.data.words import split_words
from qkv.decode.greedy import greedy
from qkv.errors import ConfigError, DataError, Place, setting
from qkv.files import read_file
from qkv.recording.recorder import record
from qkv.recording.trace_reader import read
from qkv.tasks.classify.data import encode_words
from qkv.tasks.classify.predict import Classifier
from qkv.tasks.example_run import SENTENCES, GrammarCheck, is_example
from qkv.tasks.fill import MaskFiller
from qkv.tasks.generate.predict import Generator
from qkv.tasks.length import expect_length
from qkv.tasks.load import Model, load
from qkv.tasks.notes import as_json, note
from qkv.tasks.point.predict import END_SHOWN, LAYER, ElementPointer
from qkv.tasks.regress.predict import Regressor, shown_point, shown_row
from qkv.tasks.streams import write_json, write_lines
from qkv.tasks.tag.predict import Tagger
from qkv.tasks.text_attention import expect_attention, read_ids
from qkv.tasks.translate.alignment_reading import default_reading
from qkv.tasks.translate.members import expect_single
from qkv.tasks.translate.predict import Translator, columns_of, shown_end
from qkv.view.scene import Scene
from qkv.view.showing import serve

T = TypeVar("T")
TRACE = ".safetensors"
_LARGEST = 64 << 20
"""Maximum file size in bytes."""
_TITLE = 60


def scene_of_command(
    run: Path,
    text: str | None,
    file: Path | None,
    tokens: int | None,
    device: str,
    source_col: int | None = None,
    features_col: int | None = None,
) -> Scene:
    """Build the scene for a command.

    Args:
        run: a run folder, or a trace.
        text, file: the text to read; exactly one of them for a run, none for a trace.
        tokens: number of tokens to read; None for all.
        device: compute device.
        source_col, features_col: columns of the text, numbered from 1, for a model that was trained on columns; None
            for those of its training.

    Raises:
        ConfigError: both texts or none are given for a run, or one for a trace.
        QkvError: as for `scene_of_text`, or the trace is damaged.
    """
    if run.suffix == TRACE:
        if text is not None or file is not None:
            hint = "A trace already contains its text: omit it."
            raise ConfigError(setting("text"), "no text with a trace", "one", hint)
        return read(run).scene()
    if text is None and file is None and is_example(run):
        text = SENTENCES[0]
    if (text is None) == (file is None):
        got = "none" if text is None else "both"
        raise ConfigError(
            setting("text"), f"a text or {setting('file')}", got, "Give a text for the model to read or translate."
        )
    content = text or "" if file is None else _text_of(file)
    expect_single(run)
    trained = load(run, device)
    if isinstance(trained, Translator):
        trained = columns_of(trained, source_col, features_col)
        GrammarCheck([run]).check([content], 1, trained.tokenizer)
    elif source_col is not None or features_col is not None:
        flag = setting("features_col") if source_col is None else setting("source_col")
        raise ConfigError(flag, "a translation model of columns", type(trained).__name__, "Omit it.")
    return scene_of(trained, content, tokens)


def scene_of_text(run: str | Path, text: str, device: str | torch.device = "cpu", tokens: int | None = None) -> Scene:
    """Run a trained model on a text, and record what every layer attends to.

    Args:
        run: run folder, or one checkpoint in it.
        text: one text.
        device: compute device.
        tokens: number of tokens to read; None for all.

    Returns:
        The scene: the sequences "source" and "target" of a translation, where row t is the step that wrote token t, of
        positions that are pointed at, of the points and the predictions of a regression, or of a text whose states
        are pooled by attention, where "target" is the pool's one query; or "text".

    Raises:
        CheckpointError: the checkpoint is invalid.
        DataError: the text has no tokens, or is too long for the model.
        ConfigError: the model has no attention.
    """
    expect_single(Path(run))
    return scene_of(load(run, device), text, tokens)


def scene_of(trained: Model, text: str, tokens: int | None = None) -> Scene:
    """Run a loaded model on a text, and record what every layer attends to.

    Args:
        trained: the result of `qkv.load`.
        text: one text.
        tokens: number of tokens to read; None for all.

    Returns:
        The scene, as for `scene_of_text`.

    Raises:
        DataError, ConfigError: as for `scene_of_text`.
    """
    match trained:
        case Translator():
            return _translated(trained, text, tokens)
        case ElementPointer():
            return _pointed(trained, text, tokens)
        case Regressor():
            return _regressed(trained, text, tokens)
        case Tagger():
            ids, begins = encode_words(split_words(text), trained.tokenizer)
            return _read(trained, list(_expect_tokens(ids[:tokens])), text, begins)
        case _:
            return _read(trained, list(_expect_tokens(trained.tokenizer.encode(text)[:tokens])), text)


def show_until_interrupted(scene: Scene, port: int, *, browser: bool) -> None:
    """Serve a scene until interrupted; an address that works once goes to standard output.

    Args:
        scene: the scene to show.
        port: port on 127.0.0.1; 0 for any free port.
        browser: whether to open a browser.

    Raises:
        ConfigError: the port is in use.
        UnsupportedError: the web libraries are not installed.
    """
    with serve(scene, port, browser) as serving:
        # Objects of libraries are never garbage: collections that scan them paused answers for 0.2 s from time to time.
        gc.collect()
        gc.freeze()
        if as_json():
            write_json([{"url": serving.one_time_url()}])
        else:
            write_lines([serving.one_time_url()])
        note("Only this machine can open it. Ctrl+C ends it.")
        serving.wait()


def _text_of(file: Path) -> str:
    try:
        data = read_file(file, _LARGEST)
    except OSError as error:
        expected = f"a text file in UTF-8 of at most {_LARGEST >> 20} MiB"
        got, hint = error.strerror or str(error), "Give another file, or only the part to view."
        raise DataError(Place(file), expected, got, hint) from error
    lines = enumerate(data.split(b"\n"), start=1)
    text = "\n".join(decode(line, Place(file, number), first=number == 1) for number, line in lines)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _translated(translator: Translator, text: str, tokens: int | None) -> Scene:
    tokenizer, model = translator.tokenizer, translator.model
    encoded = translator.encode(translator.symbols(text))
    ids = list(_expect_tokens(encoded.ids[:tokens]))
    expect_length(setting("text"), len(ids), translator.longest, tokenizer)
    device = device_of(model)
    source, lengths = collate_sources([ids], tokenizer.pad, device)
    stepper: Any = model
    limit, never = translator.limit(lengths), tokenizer.never_written
    bos, eos = tokenizer.bos, tokenizer.eos
    hypothesis = greedy(stepper, source, lengths, limit=limit, never=never, bos=bos, eos=eos)[0]
    hypothesis = hypothesis.ended_at(tokenizer.other_ends)
    target = torch.tensor([[tokenizer.bos, *hypothesis.ids]], device=device)
    expect_attention(model)
    with torch.no_grad(), record(model) as trace:
        model(source, lengths, target)
    read, size = pieces_open(ids, tokenizer.source, encoded.unknown), tokenizer.source.size
    written = [*pieces_open(hypothesis.ids, tokenizer, encoded.unknown), shown_end(hypothesis.finished)]
    order = -1 if translator.right_to_left[0] else 1
    origins = translator.origins(ids, hypothesis.ids[::order]) or ()
    copied = {index for index, origin in enumerate(origins[::order]) if origin is not None}
    notes = {
        "source": ["unknown" if number >= size or number == tokenizer.source.unk else "" for number in ids],
        "target": ["copied" if index in copied else mark for index, mark in enumerate(_notes(written))],
    }
    scene = trace.scene(0, {"source": read, "target": written}, title=_title(text), notes=notes)
    # A row is the step that writes a token: what is read after the step would be one row too low.
    reading = translator.reading if translator.reading.when == "at" else default_reading(model)
    return replace(scene, opening=(reading.layer, reading.head))


def _read(
    trained: Generator | MaskFiller | Classifier | Tagger, ids: list[int], text: str, begins: tuple[int, ...] = ()
) -> Scene:
    expect_attention(trained.model)
    tokens = torch.tensor([ids], device=device_of(trained.model))
    with torch.no_grad(), record(trained.model) as trace:
        read_ids(trained, tokens, begins)
    pieces = trained.tokenizer.pieces(ids)
    pooled = any(not call.self_attention for calls in trace.calls.values() for call in calls)
    name = "source" if pooled else "text"
    return trace.scene(0, {name: pieces}, title=_title(text), notes={name: _notes(pieces)})


def _pointed(trained: ElementPointer, text: str, tokens: int | None) -> Scene:
    """The pointer's attention between answer and elements; and, as another sequence, what elements attend to."""
    excerpt = " ".join(_expect_tokens(split_words(text)[:tokens]))
    item, (answer,) = trained.read(excerpt), trained.point_fully([excerpt])
    with torch.no_grad(), record(trained.model) as trace:
        trained.run(item, answer.positions)
    pointer = trace.selected([LAYER])
    sides = {"source": (END_SHOWN, *answer.elements), "target": (*answer.chosen, END_SHOWN)}
    scene = pointer.scene(0, sides, title=_title(text))
    inner = [name for name, calls in trace.calls.items() if name != LAYER and calls]
    if not inner:
        return scene
    inside = trace.selected(inner).scene(0, {"text": answer.elements})
    return replace(scene, sequences={**scene.sequences, **inside.sequences}, layers=(*inside.layers, *scene.layers))


def _regressed(regressor: Regressor, text: str, tokens: int | None) -> Scene:
    rows = regressor.rows_of(parse_table(_expect_tokens(text.split("\n")), setting("text")))[:tokens]
    with torch.no_grad(), record(regressor.model) as trace:
        regressor.model(torch.from_numpy(rows)[None])
    inputs, targets = (
        regressor.model.get_buffer("inputs").tolist(),
        regressor.model.get_buffer("targets")[:, 0].tolist(),
    )
    points = [shown_point(x, y) for x, y in zip(inputs, targets, strict=True)]
    return trace.scene(0, {"source": points, "target": [shown_row(row) for row in rows.tolist()]}, title=_title(text))


def _expect_tokens(tokens: Sequence[T]) -> Sequence[T]:
    if not tokens:
        raise DataError(setting("text"), "at least one token", "none", "Give a text for the model to read.")
    return tokens


def _notes(pieces: list[str]) -> list[str]:
    return ["unknown" if piece == "<unk>" else "" for piece in pieces]


def _title(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _TITLE else line[: _TITLE - 1] + "…"
