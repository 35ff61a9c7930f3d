"""A task: its settings from tables, and what it reads, builds and learns."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

from torch import nn

from qkv.data.tokenizer import Tokenizer
from qkv.errors import ConfigError, nearest, setting
from qkv.hub.families.load import PUBLISHED
from qkv.metrics.figure import Figure
from qkv.settings import UNKNOWN, as_dict, build, check_tables, converted, merge, options_of
from qkv.tasks.origin import Origin
from qkv.tasks.settings import ModelKind, TaskSettings, TokenizerSettings
from qkv.tasks.tokenizing import with_known_tokens
from qkv.training_settings import Settings as Training

if TYPE_CHECKING:
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
class ModelTable(Generic[C]):
    """How the settings of a task's model are read from a table, and written to one.

    Args:
        read: check a table, and fill in defaults.
        show: return the table of a configuration, without the sizes that the text determines.
    """

    read: Callable[[Mapping[str, Any]], C]
    show: Callable[[C], dict[str, Any]]


@final
@dataclass(frozen=True)
class Recipe(Generic[F, C, D, M]):
    """A training task: what it reads, builds and trains.

    Args:
        settings: its tables of settings: "tokenizer" if it reads text, "training" if it has a `job`.
        model: the settings of the table `model`.
        read: read and tokenize the files; the tokenizer is that of the run to resume or to start from, or None.
        build: create the model, with new weights; or fit it, if there is no `job`.
        job: the task in the form that `qkv.training` expects; None for a model that is complete once it is built.
        identity: what else defines the run: the text itself, not the location of its files.
        summary: what was read and built, in one line.
        defaults_of: further defaults, which follow from the model and the files.
        check: refuse settings that contradict each other.
        adapt: fit what was read to a run to start from, or refuse that run.
        judge: the figures of a model without a `job`.
        completed: fill in settings that follow from what was read.
        runs: the settings and the folder of each run of a training; one, unless an ensemble is trained.
        draw: draws a run that is complete into a file, if `settings.options` has a picture.

    Example: see docs/how_to/extend.md, "A task".
    """

    settings: TaskSettings
    model: ModelTable[C]
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
    runs: Callable[[RecipeSettings[F, C], Path], Iterable[tuple[RecipeSettings[F, C], Path]]] = (
        lambda settings, folder: [(settings, folder)]
    )
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
        model = self._read_model(tables.get("model", {}))
        files: F = build(self.settings.tables["data"], tables.get("data", {}), "data")
        defaults = self.settings.defaults_for(self._kind(model))
        completed = merge(merge(defaults, self.defaults_of(model, files)), tables)
        tokenizer = with_known_tokens(completed.get("tokenizer", {}))
        ensemble = self.settings.tables.get("ensemble")
        settings = RecipeSettings(
            files,
            build(self.settings.tables.get("tokenizer", TokenizerSettings), tokenizer, "tokenizer"),
            model,
            build(self.settings.tables.get("training", Training), completed.get("training", {}), "training"),
            None if ensemble is None else build(ensemble, tables.get("ensemble", {}), "ensemble"),
        )
        self.check(settings)
        return settings

    def _kind(self, model: C) -> object:
        """Return the kind of a model; None of a task that has only one."""
        return getattr(model, "model", None)

    def _read_model(self, table: Mapping[str, Any]) -> C:
        """Read the settings of a model; an error about an unknown name suggests names of the task, not of classes."""
        try:
            return self.model.read(self._checked(table))
        except ConfigError as error:
            for name in table:
                if error.got == UNKNOWN and error.argument == f"model.{name}" and table.get("model") != PUBLISHED:
                    hint = nearest(name, options_of(self.settings.tables["model"]))
                    raise ConfigError(error.argument, error.expected, UNKNOWN, hint) from None
            raise

    def _checked(self, table: Mapping[str, Any]) -> dict[str, Any]:
        """Return the table of a model, its values checked."""
        if table.get("model") == PUBLISHED:  # which has its own settings
            return dict(table)
        return {**table, **converted(self.settings.tables["model"], table, "model")}

    def show_settings(self, settings: RecipeSettings[F, C]) -> dict[str, Any]:
        """Return the settings as nested dicts, the inverse of `load_settings`."""
        table = {**as_dict(settings), "model": self.model.show(settings.model)}
        return {name: self.settings.replaced(name, table[name]) for name in self.tables}

    def stored(self, settings: RecipeSettings[F, C]) -> dict[str, Any]:
        """Return the tables of a checkpoint, which has no files."""
        tables = {**as_dict(settings), "model": self.model.show(settings.model)}
        return {name: tables[name] for name in self.tables if name not in _NOT_STORED}


def without(config: Any, *derived: str) -> dict[str, Any]:
    """Return the table of a configuration, without the sizes that the text determines.

    Example:
        >>> from qkv.models.language_model import DecoderConfig
        >>> "size" in without(DecoderConfig(size=9), "size")
        False
    """
    return {name: item for name, item in as_dict(config).items() if name not in derived}


def refuse_derived(table: Mapping[str, Any], names: tuple[str, ...], hint: str) -> None:
    """Refuse settings of a model that follow from the text.

    Raises:
        ConfigError: the table has one of them.

    Example:
        >>> refuse_derived({"size": 8}, ("size",), "The vocabulary comes from the training text.")
        Traceback (most recent call last):
        qkv.errors.ConfigError: model.size: expected a known setting; got a setting derived from others. The ...
    """
    for name in names:
        if name in table:
            raise ConfigError(f"model.{name}", "a known setting", "a setting derived from others", hint)


def refuse_heads(encoder: str, heads: int, default: int) -> None:
    """Refuse heads of an encoder without self-attention.

    Args:
        encoder: its kind.
        heads: how many it has.
        default: how many it has if they are not given.

    Raises:
        ConfigError: they are given, and the encoder is no Transformer.

    Example:
        >>> refuse_heads("gru", heads=4, default=4)
    """
    if encoder != "transformer" and heads != default:
        hint = f"It belongs to self-attention: omit it, or choose {setting('model', 'transformer')}."
        raise ConfigError("model.heads", "a Transformer", f"{heads} with {encoder}", hint)


@dataclass(frozen=True)
class _Kind:
    model: ModelKind = "transformer"


def kind_of(table: Mapping[str, Any]) -> ModelKind:
    """Return the kind of a model.

    Args:
        table: its settings.

    Raises:
        ConfigError: it is unknown; the message suggests the closest one.

    Example:
        >>> kind_of({"model": "GRU"}), kind_of({})
        ('gru', 'transformer')
    """
    return build(_Kind, {name: table[name] for name in ("model",) if name in table}, "model").model


def refuse_settings_of(table: Mapping[str, Any], config: type, other: type, kind: str) -> None:
    """Refuse settings that only another kind of model has.

    Args:
        table: the settings.
        config: the configuration of this kind.
        other: that of the other kind.
        kind: the flag that chooses the other kind.

    Raises:
        ConfigError: a setting is one of the other kind; the message says of which.
    """
    names, elsewhere = ({field.name for field in fields(cls)} for cls in (config, other))
    for name in table:
        if name in elsewhere - names:
            hint = (
                f"To the source there is one attention: use {setting('score')}."
                if name.startswith("cross")
                else "Omit it."
            )
            raise ConfigError(f"model.{name}", kind, "a decoder that has no such setting", hint)
