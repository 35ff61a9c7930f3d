"""Train any task by names and values: for commands, for `qkv.train`, and in the processes that they start."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from qkv.errors import QkvError
from qkv.settings import merge
from qkv.tasks.catalog import recipe_of
from qkv.tasks.corpora.prepared import with_corpus
from qkv.tasks.launch import as_plain, expect_count, joined, meet
from qkv.tasks.origin import Origin, expect_tokenizer, open_origin, origin_tables
from qkv.tasks.settings import TaskSettings
from qkv.training.events import Outcome

Tables = Mapping[str, Mapping[str, Any]]
"""Settings by table and name; data can be values."""


class TrainingRecipe(Protocol):
    """A training task: builds settings from nested dicts, and trains a run from them; see `qkv.tasks.recipe`."""

    @property
    def settings(self) -> TaskSettings:
        """Its tables of settings."""

    def load_settings(self, tables: Tables) -> Any:
        """Check settings and fill in defaults."""

    def show_settings(self, settings: Any) -> dict[str, Any]:
        """Return all settings as nested dicts."""

    def train(self, settings: Any, out: Path | None, device: str, *, tensorboard: bool, origin: Any) -> Outcome:
        """Train, or resume."""


def checked(
    recipe: TrainingRecipe, tables: Tables, start: Path | None = None, tokenizer_from: Path | None = None
) -> tuple[Tables, Any, Origin | None]:
    """Check what is asked for, which overrides the run that the training starts from.

    Args:
        recipe: the task.
        tables: what is asked for.
        start: the run whose weights and tokenizer are used, if any.
        tokenizer_from: the run whose tokenizer alone is used, if any.

    Returns:
        The tables, completed by those of that run and of a prepared corpus; all settings; and that run.

    Raises:
        QkvError: a setting is wrong, or contradicts that run or the prepared corpus.
    """
    task = recipe.settings
    origin = open_origin(start, task.name, tokenizer_from)
    tables = with_corpus(merge(origin_tables(origin, task), tables), task)
    expect_tokenizer(origin, tables, task)
    return tables, recipe.load_settings(tables), origin


def train(
    recipe: TrainingRecipe,
    tables: Tables,
    out: Path | None,
    *,
    start: Path | None = None,
    tokenizer_from: Path | None = None,
    device: str = "cpu",
    processes: int | None = None,
    tensorboard: bool = False,
    instead: Exception | None = None,
) -> Outcome:
    """Train, or resume, in this process and in those that share its updates.

    Args:
        recipe: the task.
        tables: settings.
        out: the run folder.
        start, tokenizer_from: the runs to start from, as for `checked`.
        device: compute device.
        processes: how many of this machine; None for those of `torchrun`, or one.
        tensorboard: whether to also log to TensorBoard.
        instead: what other processes than the first raise in place of an error, which the first one reports.

    Raises:
        QkvError: any bad input, or another process has ended.
    """
    number = expect_count(processes, recipe.settings)
    if number is not None and number > 1:
        tables = {table: {name: as_plain(item, name) for name, item in rows.items()} for table, rows in tables.items()}
    tables, settings, origin = checked(recipe, tables, start, tokenizer_from)
    work = partial(_train_by_name, recipe.settings.name, tables, out, start, tokenizer_from)
    with meet(number, device, work) as all_processes:
        try:
            with joined(all_processes):
                return recipe.train(settings, out, device, tensorboard=tensorboard, origin=origin)
        except QkvError:
            if all_processes.rank and instead is not None:
                raise instead from None
            raise


def _train_by_name(task: str, tables: Tables, out: Path | None, *origins: Path | None) -> None:
    """Train in a process that another one started."""
    recipe = recipe_of(task)
    _, settings, origin = checked(recipe, tables, *origins)
    recipe.train(settings, out, "cpu", tensorboard=False, origin=origin)
