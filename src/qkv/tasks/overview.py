"""What runs are: what was trained, on what, how well, and the commands that use it."""

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from qkv.checkpoint.contents import decode_figures
from qkv.checkpoint.folder import current_folder
from qkv.checkpoint.json_values import differences
from qkv.checkpoint.manifest import FIGURES, LIMITS
from qkv.checkpoint.rotation import best_step, step_folder, steps
from qkv.checkpoint.run import NAME as RUN
from qkv.checkpoint.run import read_config, read_files
from qkv.errors import CheckpointError, ConfigError
from qkv.files import absolute, as_path, read_file
from qkv.metrics.figure import Figure
from qkv.tasks.as_trained import as_flag
from qkv.tasks.catalog import TASKS, recipe_of
from qkv.tasks.run_folder import OLDER_DEFAULTS
from qkv.training.events import Outcome
from qkv.training.journal import NAME as JOURNAL
from qkv.training.journal import read_journal
from qkv.training.screen import duration, show_figures


@final
@dataclass(frozen=True)
class Overview:
    """A run.

    Args:
        folder: the run folder.
        task: what it learned.
        model: the kind of model; "" for a task that has one kind.
        files: what it was trained and validated on, as the user named it; empty in runs of older versions.
        settings: those that are not the defaults of the task and the kind of model, by dotted name.
        step: number of completed updates, up to the newest checkpoint.
        steps: how many there are to be; None for a model that is fitted in one step.
        seconds: time of training.
        best_step: the step of the best checkpoint; None before a validation.
        figures: its figures, the one that chose it first.
        attends: whether its model has attention, which can be viewed.
    """

    folder: Path
    task: str
    model: str
    files: Mapping[str, str]
    settings: Mapping[str, Any]
    step: int
    steps: int | None
    seconds: float
    best_step: int | None
    figures: tuple[Figure, ...]
    attends: bool = True

    @classmethod
    def of(cls, folder: Path) -> "Overview":
        """Read what a run is.

        Raises:
            CheckpointError: it is no run, of an unknown task, or damaged.
        """
        config = read_config(folder)
        task, model, training = config.get("task"), config.get("model"), config.get("training")
        if task not in TASKS:
            hint = f"Its tasks are {', '.join(TASKS)}."
            raise CheckpointError(str(folder / RUN), "a task of this version", repr(task)[:80], hint)
        kind = model.get("model", "") if isinstance(model, Mapping) else ""
        training = training if isinstance(training, Mapping) else {}
        planned, monitor = training.get("steps"), training.get("monitor")
        best, lines = best_step(folder), read_journal(folder / JOURNAL)
        return cls(
            folder,
            str(task),
            str(kind),
            read_files(folder),
            _not_default(str(task), config),
            max(steps(folder), default=0),
            planned if isinstance(planned, int) else None,
            max((float(line.get("seconds") or 0.0) for line in lines), default=0.0),
            best,
            () if best is None else _figures(current_folder(step_folder(folder, best)), monitor),
            _attends(str(task), model),
        )

    @property
    def trained(self) -> str:
        """How long it was trained."""
        if self.steps is None:
            return "fitted"
        of = "" if self.step == self.steps else f" of {self.steps:,}"
        return f"{self.step:,}{of} steps, {duration(self.seconds)}"

    def lines(self) -> list[str]:
        """Return everything as lines for people."""
        files = list(dict.fromkeys(self.files.values()))
        best = "" if self.best_step is None or self.steps is None else f"at step {self.best_step:,}: "
        rows = {
            "task": f"{self.task} ({self.model})" if self.model else self.task,
            "trained on": files[0] if files else "",
            "validated on": files[1] if len(files) > 1 else "",
            "settings": " ".join(as_flag(name.partition(".")[2], item) for name, item in self.settings.items()),
            "trained": self.trained,
            "best": best + show_figures(self.figures) if self.figures else "",
        }
        width = max(map(len, rows))
        lines = [f"{name:{width}}  {text}" for name, text in rows.items() if text]
        return [str(self.folder), *lines, *(f"{'use':{width}}  {line}" for line in self.commands())]

    def to_json_value(self) -> dict[str, Any]:
        """Return everything as names and numbers."""
        figures = {figure.name: figure.value for figure in self.figures}
        values = {"run": self.folder, **vars(self), "figures": figures, "commands": self.commands()}
        return {name: item for name, item in values.items() if name not in ("folder", "attends")}

    def commands(self, folder: Path | None = None) -> list[str]:
        """Return the commands that use it, by the examples in the help of its task.

        Args:
            folder: the folder that they name; None for its own.
        """
        settings, run = TASKS[self.task], shlex.quote(str(folder or self.folder))
        examples = [_example(table) for table in (settings.answers, settings.evaluation)]
        text = re.search(r'"[^"]+"', examples[0])
        if text is not None and self.attends:
            examples.append(f"qkv view RUN --text {text[0]}")
        return [re.sub(r"runs/\S+|\bRUN\b", lambda _: run, example) for example in examples if example]


def runs(folder: str | Path = ".") -> list[Overview]:
    """Return what was trained in a folder and in the folders below it, as `qkv runs` lists it.

    Args:
        folder: a run, or a folder with runs.

    Returns:
        An overview for each run, by name of its folder: what it was trained on, for how long, and how good it is. A
        list of them makes a `pandas.DataFrame`.

    Raises:
        CheckpointError: there is no such folder, or a run is damaged.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> import qkv
        >>> with TemporaryDirectory() as folder:
        ...     table = [(float(x), float(x * x)) for x in range(20)]
        ...     _ = qkv.train("regress", data=table, bandwidth=1.0, out=f"{folder}/squares", quiet=True)
        ...     [(run.folder.name, run.task, run.trained, run.settings["model.bandwidth"]) for run in runs(folder)]
        [('squares', 'regress', 'fitted', 1.0)]
    """
    return [Overview.of(run) for run in runs_in(as_path(folder, "folder"))]


def runs_in(folder: Path) -> Iterator[Path]:
    """Yield the runs in a folder and in the folders below it, in the order of their names, or the folder if it is one.

    Raises:
        CheckpointError: there is no such folder.
    """
    if not folder.is_dir():
        raise CheckpointError(str(folder), "a run, or a folder with runs", "no such folder", "Check the name.")
    for parent, folders, files in os.walk(folder):
        if RUN in files:
            folders.clear()
            yield Path(parent)
        folders[:] = sorted(name for name in folders if not name.startswith("."))


def summary(outcome: Outcome, out: Path) -> list[str]:
    """Return what to say at the end of a training: how long it took, its best figures, where they lie, what to do next.

    Args:
        outcome: how it ended.
        out: the folder that the training was given; that of an ensemble has a run for each model.
    """
    run = Overview.of(outcome.checkpoint.parent)
    at = "" if run.steps is None else f", at step {run.best_step:,}"
    best = f"; best: {show_figures(run.figures)}{at}" if run.figures else ""
    within = absolute(run.folder).relative_to(absolute(out))  # of an ensemble the name of the last model
    where = out / within if run.best_step is None else step_folder(out / within, run.best_step)
    return [f"qkv: {run.trained}{best}, in {where}", *(f"  {line}" for line in run.commands(out))]


def _example(table: Any) -> str:
    found = re.search(r"^ *Example: (.+)$", getattr(table, "__doc__", None) or "", flags=re.MULTILINE)
    return "" if found is None else found[1]


def _figures(checkpoint: Path, monitor: object) -> tuple[Figure, ...]:
    path = checkpoint / FIGURES
    figures = decode_figures(read_file(path, LIMITS[FIGURES], links=False), str(path)) if path.is_file() else ()
    return tuple(sorted(figures, key=lambda figure: figure.name != (monitor or figures[0].name)))


def _not_default(task: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that are not the defaults of the task and the kind of model."""
    recipe = recipe_of(task)
    stored = {table: config[table] for table in recipe.settings.tables if isinstance(config.get(table), Mapping)}
    kind = {"model": stored.get("model", {}).get("model")}
    try:
        usual = recipe.stored(recipe.load_settings({"model": kind} if kind["model"] else {}))
    except ConfigError:  # of a published model, whose defaults are those of its own files
        usual = {}
    return {
        name: now
        for name, before, now in differences({"data": {}, **usual}, stored)
        if now is not None and (before is not None or OLDER_DEFAULTS.get(name) != now)
    }


def _attends(task: str, model: object) -> bool:
    """Return whether a model has attention; one that is described in other files has."""
    try:
        settings = recipe_of(task).load_settings({"model": model})
    except ConfigError:
        return True
    return bool(getattr(settings.model, "attends", True))
