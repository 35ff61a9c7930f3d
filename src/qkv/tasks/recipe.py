"""A task: its settings from tables, and what it reads, builds and learns."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

from torch import nn

from qkv.data.tokenizer import Tokenizer
from qkv.metrics.figure import Figure
from qkv.settings import as_dict, build, check_tables, merge
from qkv.tasks.folds import Examples
from qkv.tasks.origin import Origin
from qkv.tasks.settings import TaskSettings, TokenizerSettings, columns_of
from qkv.tasks.tokenizing import with_known_tokens
from qkv.training_settings import Settings as Training

if TYPE_CHECKING:
    from qkv.hub.published import PublishedConfig
    from qkv.training.protocols import Task

Tables = Mapping[str, Mapping[str, Any]]
"""Settings by table and name."""


TABLES = ("data", "tokenizer", "model", "training", "ensemble")
"""The tables of a training."""
_NOT_STORED = ("data", "ensemble")
"""Tables that checkpoints do not store, because they do not describe a single model."""
F = TypeVar("F")
C = TypeVar("C")
D = TypeVar("D")
M = TypeVar("M", bound=nn.Module)


@final
@dataclass(frozen=True)
class RecipeSettings(Generic[F, C]):
    """All settings of a training; those of tables that a task lacks are the defaults, and unused.

    Args:
        data: the files.
        tokenizer: tokenizer settings.
        model: kind and sizes of the model.
        training: training settings.
        ensemble: how many models are trained; None for a task that trains one.
    """

    data: F
    tokenizer: TokenizerSettings
    model: C
    training: Training
    ensemble: Any = None


@final
@dataclass(frozen=True)
class Recipe(Generic[F, C, D, M]):
    """A training task: what it reads, builds and trains.

    Args:
        settings: its tables of settings: "tokenizer" if it reads text, "training" if it has a `job`.
        read: read and tokenize the files; the tokenizer is that of the run to resume or to start from, or None.
        build: create the model, with new weights; or fit it, if there is no `job`.
        job: the task in the form that `qkv.training` expects; None for a model that is complete once it is built.
        identity: what else defines the run, by names that are no table's: the text itself, not where its files are.
        summary: what was read and built, in one line.
        defaults_of: further defaults, which follow from the model and the files.
        check: refuse settings that contradict each other.
        adapt: fit what was read to a run to start from, or refuse that run.
        judge: the figures of a model without a `job`.
        completed: fill in settings that follow from what was read.
        published: the configuration of models of other libraries, if a training can continue from one.
        runs: the settings and the folder of each run of a training; one, unless an ensemble is trained.
        inspect: reads the files for a report alone, without what only a training needs; None to use `read`.
        examples: reads the files as examples that can be divided for cross-validation; None for a task that has none.
        draw: draws a run that is complete into a file, if `settings.options` has a picture.

    Example: see docs/how_to/extend.md, "A task".
    """

    settings: TaskSettings
    read: Callable[[RecipeSettings[F, C], Tokenizer | None], D]
    build: Callable[[C, D], M]
    job: "Callable[[M, D, RecipeSettings[F, C]], Task[Any]] | None"
    identity: Callable[[D, RecipeSettings[F, C]], dict[str, Any]]
    summary: Callable[[D, M], str]
    defaults_of: Callable[[C, F], Mapping[str, Mapping[str, object]]] = lambda model, files: {}
    check: Callable[[RecipeSettings[F, C]], None] = lambda settings: None
    adapt: Callable[[D, Origin | None], D] = lambda text, origin: text
    judge: Callable[[M, D, RecipeSettings[F, C]], Sequence[Figure]] = lambda model, text, settings: ()
    completed: Callable[[RecipeSettings[F, C], D], RecipeSettings[F, C]] = lambda settings, text: settings
    published: "type[PublishedConfig] | None" = None
    runs: Callable[[RecipeSettings[F, C], Path], Iterable[tuple[RecipeSettings[F, C], Path]]] = (
        lambda settings, folder: [(settings, folder)]
    )
    inspect: Callable[[RecipeSettings[F, C]], None] | None = None
    examples: Callable[[F], Examples] | None = None
    draw: Callable[[Path, Path], None] = lambda run, picture: None

    @property
    def task(self) -> str:
        """Its name, as in `qkv train NAME`."""
        return self.settings.name

    @property
    def tables(self) -> tuple[str, ...]:
        """Its tables."""
        return tuple(table for table in self.settings.tables if table in TABLES)

    def load_settings(self, tables: Tables) -> RecipeSettings[F, C]:
        """Build settings from nested dicts, checking all of them.

        Args:
            tables: those of the task; missing values get defaults.

        Returns:
            The settings.

        Raises:
            ConfigError: a name is unknown (the message suggests the closest one), or a value is invalid.
        """
        check_tables(tables, {name: self.settings.tables[name] for name in self.tables})
        self.settings.expect_todays_names(tables)
        self.settings.expect_one(tables)
        configuration = self.configuration(tables.get("model", {}))
        model: C = build(configuration, tables.get("model", {}), "model")
        files: F = build(self.settings.tables["data"], tables.get("data", {}), "data")
        defaults = self.settings.defaults_for(getattr(model, "model", None))
        completed = merge(merge(defaults, self.defaults_of(model, files)), tables)
        tokenizer = with_known_tokens(completed.get("tokenizer", {}))
        ensemble = self.settings.tables.get("ensemble")
        settings = RecipeSettings(
            build(self.settings.tables["data"], completed.get("data", {}), "data"),
            build(self.settings.tables.get("tokenizer", TokenizerSettings), tokenizer, "tokenizer"),
            build(configuration, completed.get("model", {}), "model"),
            build(self.settings.tables.get("training", Training), completed.get("training", {}), "training"),
            None if ensemble is None else build(ensemble, tables.get("ensemble", {}), "ensemble"),
        )
        self.check(settings)
        return settings

    def configuration(self, table: Mapping[str, Any]) -> Any:
        """Return the configuration of the model that a table describes, or the union of those that it can be."""
        kind = None if self.published is None else self.published.model
        return self.settings.tables["model"] if kind is None or table.get("model") != kind else self.published

    def show_settings(self, settings: RecipeSettings[F, C]) -> dict[str, Any]:
        """Return the settings as nested dicts, the inverse of `load_settings`."""
        tables = as_dict(settings)
        return {name: self.settings.replaced(name, tables[name]) for name in self.tables}

    def stored(self, settings: RecipeSettings[F, C]) -> dict[str, Any]:
        """Return the tables of a checkpoint, which has no files; of their columns those that are given."""
        tables = as_dict(settings)
        columns = columns_of(settings.data)
        described = {"data": columns} if columns else {}
        return described | {name: tables[name] for name in self.tables if name not in _NOT_STORED}


AnyRecipe = Recipe[Any, Any, Any, Any]
