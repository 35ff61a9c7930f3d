"""A task: its settings from tables, and what it reads, builds and learns."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, final

from torch import nn

from qkv.data.tokenizer import Tokenizer
from qkv.metrics.figure import Figure
from qkv.settings import as_dict, build, check_tables, merge
from qkv.tasks.folds import Examples
from qkv.tasks.origin import Origin
from qkv.tasks.settings import TaskSettings, TokenizerSettings, columns_of
from qkv.tasks.tokenizing import Unknown, with_known_tokens
from qkv.training_settings import Settings as Training

if TYPE_CHECKING:
    from qkv.hub.published import PublishedConfig

Tables = Mapping[str, Mapping[str, Any]]
"""Settings by table and name."""


_NOT_STORED = ("data", "ensemble")
"""Tables that checkpoints do not store, because they do not describe a single model."""
F = TypeVar("F")
C = TypeVar("C")
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


@dataclass(frozen=True)
class Recipe(ABC, Generic[F, C, M]):
    """A task that is trained: how its settings become data, a model and a loss; an instance is the data that was read.

    A task with a table "training" is trained step by step, and is a `qkv.training.protocols.Task`. The model of another
    one is complete once it is built; of that protocol it has `validate`.

    Attributes:
        settings: its tables of settings: "tokenizer" if it reads text.
        published: the configuration of models of other libraries, if a training can continue from one.

    Args:
        chosen: the settings by which the data was read.

    Example: see docs/how_to/extend.md, "A task".
    """

    settings: ClassVar[TaskSettings]
    published: ClassVar["type[PublishedConfig] | None"] = None

    chosen: RecipeSettings[F, C]

    @classmethod
    @abstractmethod
    def read(cls, settings: RecipeSettings[F, C], tokenizer: Tokenizer | None) -> Self:
        """Read and tokenize the files; the tokenizer is that of the run to resume or to start from, or None."""

    @abstractmethod
    def build(self) -> M:
        """Create the model, with new weights; or fit it."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Return what else defines the run, by names that are no table's: the text itself, not where its files are."""

    @abstractmethod
    def summary(self, model: M) -> str:
        """Return what was read and built, in one line."""

    @abstractmethod
    def validate(self, model: M) -> Sequence[Figure]:
        """Judge a model by what was held out, see `qkv.training.protocols.Task`."""

    def count_unknown(self) -> Sequence[Unknown]:
        """Return the number of unknown tokens of each part of a text."""
        return ()

    def adapted(self, origin: Origin | None) -> Self:
        """Return the data as a run to start from needs it, or refuse that run."""
        return self

    def completed(self) -> RecipeSettings[F, C]:
        """Return the settings with those that follow from what was read."""
        return self.chosen

    @classmethod
    def inspect(cls, settings: RecipeSettings[F, C]) -> None:
        """Read the files for a report alone, if possible without what only a training needs."""
        cls.read(settings, None)

    @staticmethod
    def defaults_of(config: C, files: F) -> Mapping[str, Mapping[str, object]]:
        """Return further defaults, which follow from the model and the files."""
        return {}

    @staticmethod
    def check(settings: RecipeSettings[F, C]) -> None:
        """Refuse settings that contradict each other."""

    @staticmethod
    def runs(settings: RecipeSettings[F, C], folder: Path) -> Iterable[tuple[RecipeSettings[F, C], Path]]:
        """Return the settings and the folder of each run of a training; one, unless an ensemble is trained."""
        return [(settings, folder)]

    @staticmethod
    def examples(files: F) -> Examples | None:
        """Read the files as examples that can be divided for cross-validation; None for a task that has none."""
        return None

    @staticmethod
    def draw(run: Path, picture: Path) -> None:
        """Draw a run that is complete into a file, if `settings.options` has a picture."""

    @classmethod
    def load_settings(cls, tables: Tables) -> RecipeSettings[F, C]:
        """Build settings from nested dicts, checking all of them.

        Args:
            tables: those of the task; missing values get defaults.

        Returns:
            The settings.

        Raises:
            ConfigError: a name is unknown (the message suggests the closest one), or a value is invalid.
        """
        check_tables(tables, cls.settings.tables)
        cls.settings.expect_todays_names(tables)
        cls.settings.expect_one(tables)
        configuration = cls.configuration(tables.get("model", {}))
        model: C = build(configuration, tables.get("model", {}), "model")
        files: Any = build(cls.settings.tables["data"], tables.get("data", {}), "data")
        defaults = cls.settings.defaults_for(getattr(model, "model", None))
        completed = merge(merge(defaults, cls.defaults_of(model, files)), tables)
        tokenizer = with_known_tokens(completed.get("tokenizer", {}))
        ensemble = cls.settings.tables.get("ensemble")
        added = {name: item for name, item in completed.get("data", {}).items() if name not in tables.get("data", {})}
        settings = RecipeSettings(
            replace(files, **added),  # not built again: an iterator can be read only once
            build(cls.settings.tables.get("tokenizer", TokenizerSettings), tokenizer, "tokenizer"),
            build(configuration, completed.get("model", {}), "model"),
            build(cls.settings.tables.get("training", Training), completed.get("training", {}), "training"),
            None if ensemble is None else build(ensemble, tables.get("ensemble", {}), "ensemble"),
        )
        cls.check(settings)
        return settings

    @classmethod
    def configuration(cls, table: Mapping[str, Any]) -> Any:
        """Return the configuration of the model that a table describes, or the union of those that it can be."""
        kind = None if cls.published is None else cls.published.model
        return cls.settings.tables["model"] if kind is None or table.get("model") != kind else cls.published

    @classmethod
    def show_settings(cls, settings: RecipeSettings[F, C]) -> dict[str, Any]:
        """Return the settings as nested dicts, the inverse of `load_settings`."""
        tables = as_dict(settings)
        return {name: cls.settings.replaced(name, tables[name]) for name in cls.settings.tables}

    @classmethod
    def stored(cls, settings: RecipeSettings[F, C]) -> dict[str, Any]:
        """Return the tables of a checkpoint, which has no files; of their columns those that are given."""
        tables = as_dict(settings)
        columns = columns_of(settings.data)
        described = {"data": columns} if columns else {}
        return described | {name: tables[name] for name in cls.settings.tables if name not in _NOT_STORED}


AnyRecipe = type[Recipe[Any, Any, Any]]
