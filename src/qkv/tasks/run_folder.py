"""The run folder of a training: checks before it is used, and saving a model that is fitted in one step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from qkv.checkpoint.contents import Contents
from qkv.checkpoint.disk import expect_writable
from qkv.checkpoint.rotation import save_step, step_folder
from qkv.checkpoint.run import NAME as RUN
from qkv.checkpoint.run import expect_run_folder, expect_same, open_run, read_config
from qkv.errors import ConfigError, joined, quantity, setting
from qkv.metrics.figure import Figure
from qkv.tasks.launch import expect_one_process
from qkv.tasks.listeners import listeners
from qkv.tasks.notes import note
from qkv.training.events import Outcome, Saved, Validated
from qkv.training.processes import current
from qkv.training_settings import Settings

_FITTED = 1
"""The step number of a model that is fitted in one step."""
CHANGEABLE = (
    "data",  # how the text is written, which may not change
    "decimal",  # the same in older regressions
    "training.steps",
    "training.epochs",
    "training.minutes",
    "training.schedule_steps",
    "training.validate_every",
    "training.log_every",
    "training.patience",
    "training.keep",
    "longest_targets",  # follows from the text, which may not change
)
"""What may change in a configuration when a run is resumed."""
OLDER_DEFAULTS: Mapping[str, Any] = {
    "model.model": "transformer",
    "model.alignment": "soft",
    "model.residual": False,
    "model.sinks": False,
    "model.score": "default",
    "model.normalizer": "softmax",
    "model.heads": 1,
    "model.degree": 0,
    "model.encoder_layers": 1,
    "model.decoder_layers": 1,
    "model.encoder_heads": 4,
    "model.positions": "sinusoidal",
    "table.features": "front",
    "tokenizer.unicode": "none",
    "training.parts": 1,
}
"""Settings that older runs do not contain, with the value that they used."""
_SOURCES = ("prepared", "data", "source", "target", "text")
"""Settings that name what is trained on; with `valid_` before them, what is validated on."""


def run_folder(out: Path | None) -> Path:
    """Check the run folder before any text is read: it must be given and writable.

    Raises:
        ConfigError: it is not given.
        CheckpointError: it is a file, or is not writable.

    Example:
        >>> run_folder(Path("runs/first")).name
        'first'
    """
    if out is None:
        hint = "For example " + setting("out", "runs/first") + ". Run the same command again to resume."
        raise ConfigError(setting("out"), "a folder for the run", "none", hint)
    expect_writable(out)
    return out


def expect_same_run(folder: Path, task: str, tables: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse a folder with something else, a run of another task or other settings, before any text is read.

    Args:
        folder: the run folder, existing or not.
        task: the task.
        tables: settings by table and name; those that the run lacks, or that are not given, are not compared.

    Raises:
        ConfigError: the task differs, or a setting that must not change.
        CheckpointError: the folder contains something other than a run.

    Example:
        >>> expect_same_run(Path("/nowhere"), "classify", {})
    """
    if not (folder / RUN).is_file():
        if folder.is_dir():
            expect_run_folder(folder)
        return
    stored = read_config(folder)
    other = stored.get("task")
    if isinstance(other, str) and other != task:
        expected, got = f"a new folder, or one of `qkv train {task}`", f"{folder}, of `qkv train {other[:80]}`"
        raise ConfigError(setting("out"), expected, got, "Give another folder.")
    before = {
        table: {name: row[name] for name in settings if name in row}
        for table, settings in tables.items()
        if isinstance(row := stored.get(table), dict)
    }
    now = {table: {name: tables[table][name] for name in row} for table, row in before.items()}
    expect_same(folder, before, now, CHANGEABLE)


def with_parts(training: Settings, folder: Path) -> Settings:
    """Return the settings with the number of parts of a batch: that of the resumed run, or the fewest that are needed.

    Args:
        training: the settings.
        folder: the run folder, existing or not; the first process reads it for all.
    """
    processes = current()
    parts = training.parts or -(-processes.size // training.accumulate)
    if training.parts is None and processes.leads and (folder / RUN).is_file():
        stored = read_config(folder).get("training")
        known = stored.get("parts", 1) if isinstance(stored, dict) else None
        parts = known if isinstance(known, int) else parts
    return replace(training, parts=int(processes.copy_text(f"{parts}")))


def with_steps(training: Settings, folder: Path, seconds_of_update: Callable[[], float]) -> Settings:
    """Return the settings with a number of steps in place of minutes, the same one whenever the run is resumed.

    Args:
        training: the settings, which count minutes.
        folder: the run folder, existing or not; the first process reads it for all.
        seconds_of_update: measures how long an update takes; called for a run that was begun without minutes.
    """
    assert training.minutes is not None
    processes, steps = current(), 0
    if processes.leads and (folder / RUN).is_file():
        match read_config(folder).get("training"):
            case {"minutes": float() | int() as minutes, "steps": int(stored)} if minutes > 0:
                steps = max(1, round(stored * training.minutes / minutes))
    steps = int(processes.copy_text(f"{steps}"))
    if not steps:
        seconds = seconds_of_update()
        steps = int(processes.copy_text(f"{max(1, round(60 * training.minutes / seconds))}"))
        note(f"qkv: an update takes {seconds:.3g} s here: {quantity(steps, 'step')}, without the validations")
    return replace(training, steps=steps)


def files_read(files: object) -> dict[str, str]:
    """Return the files that a run is trained and validated on, as the user gave them, by their fields of its `text`.

    Args:
        files: the settings of a task's files.

    Example:
        >>> from qkv.tasks.regress.settings import RegressFiles
        >>> files_read(RegressFiles(data=None))
        {}
    """
    flags = {
        part: joined(
            " ",
            [
                setting(name, value if isinstance(value, str | Path) else None)
                for name in (f"{prefix}{source}" for source in _SOURCES)
                if (value := getattr(files, name, None)) is not None
            ],
        )
        for part, prefix in (("train", ""), ("valid", "valid_"))
    }
    train = flags["train"]
    named = {"text.train": train, "text.prepared": train, "text.valid": flags["valid"] or train}
    return {field: text for field, text in named.items() if text}


def store(
    model: nn.Module, figures: Sequence[Figure], out: Path, config: Mapping[str, Any], files: Mapping[str, str]
) -> Outcome:
    """Save a model that needs no training, in place of an equal one if there is one.

    Args:
        model: the fitted model.
        figures: its evaluation, the most important one first.
        out: the run folder.
        config: what defines the run.
        files: as for `open_run`.

    Returns:
        How it ended: after its only step.

    Raises:
        ConfigError: the folder contains a run with another configuration, or there are several processes.
        CheckpointError: the folder cannot be used.
    """
    expect_one_process(current().size)
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    contents = Contents(state, dict(config), figures=tuple(figures))
    with open_run(out, contents.config, free=CHANGEABLE, added=OLDER_DEFAULTS, files=files):
        digest = save_step(out, _FITTED, contents, keep=1, best=True).digest
    best = contents.figures[0] if contents.figures else None
    for listener in listeners():
        listener(Validated(_FITTED, contents.figures, better=True))
        listener(Saved(_FITTED, step_folder(out, _FITTED)))
    return Outcome("finished", _FITTED, step_folder(out, _FITTED), digest, contents.figures, best, _FITTED)
