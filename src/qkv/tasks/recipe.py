"""What all training tasks share: settings from tables, and a run folder from settings."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, final, runtime_checkable

from torch import nn

from qkv.data.tokenizer import Tokenizer
from qkv.errors import ConfigError, nearest, on_command_line, setting, spelled
from qkv.hub.families.load import PUBLISHED
from qkv.metrics.figure import Figure
from qkv.nn.first_batch import start_from_first_batch
from qkv.nn.mechanism import MechanismConfig
from qkv.normalizers.kinds import BLURRED
from qkv.settings import UNKNOWN, as_dict, build, check_tables, converted, merge, options_of
from qkv.tasks.listeners import listeners
from qkv.tasks.notes import note, progress, verbose, working
from qkv.tasks.origin import Origin, first_tokenizer, origin_config, start_from
from qkv.tasks.run_folder import CHANGEABLE, OLDER_DEFAULTS, expect_same_run, files_read, run_folder, store, with_parts
from qkv.tasks.settings import ModelKind, TaskSettings, TokenizerSettings
from qkv.tasks.tokenizing import Unknown, as_learned, expect_known, with_known_tokens
from qkv.training import trainer
from qkv.training.batches import batches_of, first_batches
from qkv.training.events import Outcome
from qkv.training.protocols import Task
from qkv.training.screen import show_figures
from qkv.training.seeds import seed_everything, undisturbed
from qkv.training.settings import Settings as Training
from qkv.values.catalog import as_flag
from qkv.values.devices import as_device

Tables = Mapping[str, Mapping[str, Any]]
"""Settings by table and name."""


@runtime_checkable
class Tokenized(Protocol):
    """What a task with text reads from its files."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Text to tokens and back, stored with the checkpoints."""


@runtime_checkable
class Counted(Protocol):
    """What a task with text reads, if it counts the unknown tokens."""

    def count_unknown(self) -> Sequence[Unknown]:
        """Return how many tokens of each part of the text are unknown to the tokenizer."""


TABLES = ("data", "tokenizer", "model", "training")
"""The tables of a run; an ensemble of runs has one more."""
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
    """

    data: F
    tokenizer: TokenizerSettings
    model: C
    training: Training


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

    Example: see docs/how_to/extend.md, "A task".
    """

    settings: TaskSettings
    model: ModelTable[C]
    read: Callable[[RecipeSettings[F, C], Tokenizer | None], D]
    build: Callable[[C, D], M]
    job: Callable[[M, D, RecipeSettings[F, C]], Task[Any]] | None
    identity: Callable[[D, RecipeSettings[F, C]], dict[str, Any]]
    summary: Callable[[D, M], str]
    defaults_of: Callable[[C, F], Mapping[str, Mapping[str, object]]] = lambda model, files: {}
    check: Callable[[RecipeSettings[F, C]], None] = lambda settings: None
    adapt: Callable[[D, Origin | None], D] = lambda text, origin: text
    judge: Callable[[M, D, RecipeSettings[F, C]], Sequence[Figure]] = lambda model, text, settings: ()
    completed: Callable[[RecipeSettings[F, C], D], RecipeSettings[F, C]] = lambda settings, text: settings

    @property
    def task(self) -> str:
        """Its name, as in `qkv train NAME`."""
        return self.settings.name

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables of a single run."""
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
        tables = self.settings.current(tables)
        self.settings.expect_one(tables)
        model = self._read_model(tables.get("model", {}))
        files: F = build(self.settings.tables["data"], tables.get("data", {}), "data")
        defaults = self.settings.defaults_for(self._kind(model))
        completed = merge(merge(defaults, self.defaults_of(model, files)), tables)
        tokenizer = with_known_tokens(completed.get("tokenizer", {}))
        settings = RecipeSettings(
            files,
            build(self.settings.tables.get("tokenizer", TokenizerSettings), tokenizer, "tokenizer"),
            model,
            build(self.settings.tables.get("training", Training), completed.get("training", {}), "training"),
        )
        self.check(settings)
        return settings

    def _kind(self, model: C) -> object:
        """Return the kind of a model; None of a task that has only one."""
        option = options_of(self.settings.tables["model"]).get("model")
        return None if option is None else self.model.show(model).get(option.stored)

    def _read_model(self, table: Mapping[str, Any]) -> C:
        """Read the settings of a model; an error about an unknown name suggests names of the task, not of classes."""
        try:
            return self.model.read(self._model_table(table))
        except ConfigError as error:
            for name in table:
                if error.got == UNKNOWN and error.argument == f"model.{name}" and table.get("model") != PUBLISHED:
                    raise ConfigError(
                        error.argument, error.expected, UNKNOWN, self._nearest_model_setting(name)
                    ) from None
            raise

    def _nearest_model_setting(self, name: str) -> str:
        """Suggest similar model settings; those of earlier versions only if the given name resembles one of them."""
        options = options_of(self.settings.tables["model"])
        former = [option.stored for option in options.values() if option.stored]
        return nearest(name, [*options, *former] if get_close_matches(name, former, cutoff=0.5) else options)

    def _model_table(self, table: Mapping[str, Any]) -> dict[str, Any]:
        """Return the table of a model by the names of checkpoints, its values checked."""
        if table.get("model") != PUBLISHED:  # which has its own settings
            table = {**table, **converted(self.settings.tables["model"], table, "model")}
        return self.settings.stored("model", table)

    def show_settings(self, settings: RecipeSettings[F, C]) -> dict[str, Any]:
        """Return the settings as nested dicts, the inverse of `load_settings`."""
        table = self.settings.current({**as_dict(settings), "model": self.model.show(settings.model)})
        return {name: self.settings.replaced(name, table[name]) for name in self.tables}

    def train(
        self,
        settings: RecipeSettings[F, C],
        out: Path | None,
        device: str = "cpu",
        *,
        tensorboard: bool = False,
        origin: Origin | None = None,
    ) -> Outcome:
        """Train a model, or resume a run; fitting a model without a `job` again saves an equal one.

        Args:
            settings: files, tokens, model, training.
            out: the run folder.
            device: compute device; a model without a `job` is fitted on the CPU.
            tensorboard: whether to also log the training to TensorBoard.
            origin: the run that provides initial weights and tokenizer; None to train from scratch.

        Returns:
            How it ended.

        Raises:
            QkvError: any bad input; nothing already saved is lost.
        """
        folder, compute_device = run_folder(out), as_device(device)
        if self.job is not None:
            settings = replace(settings, training=with_parts(settings.training, folder))
        tables = self._stored(settings)
        # Those of the tokenizer can follow from the text.
        expect_same_run(folder, self.task, {name: tables[name] for name in tables if name != "tokenizer"})
        tokenizer = first_tokenizer(folder, origin) if "tokenizer" in self.tables else None
        with working("reading the text"):
            text = self.read(settings, tokenizer)
        unknown = text.count_unknown() if isinstance(text, Counted) else ()
        expect_known(unknown)
        if "tokenizer" in self.tables and isinstance(text, Tokenized):
            settings = replace(settings, tokenizer=as_learned(settings.tokenizer, text.tokenizer))
        text = self.adapt(text, origin)
        settings = self.completed(settings, text)
        if self.job is None:
            return self._fit(settings, text, folder, origin)
        seed_everything(settings.training.seed)  # it determines the initial weights too
        model = self.build(settings.model, text).to(compute_device)
        start_from(model, origin)
        task = self.job(model, text, settings)
        training = with_steps(settings.training, task)
        if origin is None or not origin.weights:
            with working("computing the first batch"):
                start_from_first_batch(model, lambda: first_objective(task, training))
        vocabulary = [_vocabulary(text, unknown)] if isinstance(text, Tokenized) else []
        note("; ".join([self.summary(text, model), *vocabulary, _size(model)]))
        warn_of_mechanisms(settings.model)
        # PyTorch's optimizers import its compiler, which takes seconds. Imported here, a signal ends the process at
        # once, because there is nothing to save yet; within the loop it would have to wait for the import.
        from torch import _dynamo  # noqa: F401

        return trainer.train(
            task,
            model,
            training,
            run=folder,
            config={**self._config(replace(settings, training=training), text), **origin_config(origin)},
            tokenizer=text.tokenizer.to_json() if isinstance(text, Tokenized) else None,
            free=CHANGEABLE,
            added=OLDER_DEFAULTS,
            files=files_read(settings.data),
            tensorboard=tensorboard,
            stream=progress(),
            every=verbose(),
            listeners=listeners(),
        )

    def _fit(self, settings: RecipeSettings[F, C], text: D, folder: Path, origin: Origin | None) -> Outcome:
        """Build, judge and save a model that is complete once it is built."""
        if origin is not None:
            hint = "It is fitted from its data alone."
            raise ConfigError(setting("from"), f"none for {self.task}", str(origin.trained.folder), hint)
        with working("fitting"):
            model = self.build(settings.model, text)
        with working("judging the fit"):
            figures = self.judge(model, text, settings)
        outcome = store(model, figures, folder, self._config(settings, text), files_read(settings.data))
        note(f"{self.summary(text, model)}: {show_figures(outcome.figures)}")
        return outcome

    def _config(self, settings: RecipeSettings[F, C], text: D) -> dict[str, Any]:
        """Return what defines the run: its settings, and the text itself in place of its files."""
        return {"task": self.task, **self.identity(text, settings), **self._stored(settings)}

    def _stored(self, settings: RecipeSettings[F, C]) -> dict[str, Any]:
        """Return the tables of a checkpoint, which has no files."""
        tables = {**as_dict(settings), "model": self.model.show(settings.model)}
        return {name: self.settings.stored(name, tables[name]) for name in self.tables if name != "data"}


def _size(model: nn.Module) -> str:
    count = sum(parameter.numel() for parameter in model.parameters())
    return f"{count / 1e6:.1f} million parameters" if count >= 1_000_000 else f"{count:,} parameters"


def _vocabulary(text: Tokenized, parts: Sequence[Unknown]) -> str:
    unknown = sum(part.unknown for part in parts if part.part.startswith("training"))
    detail = f" ({unknown:,} of the training tokens unknown)" if unknown else ""
    return f"vocabulary of {text.tokenizer.size:,}{detail}"


def with_steps(training: Training, task: Task[Any]) -> Training:
    """Return the settings with as many steps as the epochs have, if epochs are counted."""
    if training.epochs is None:
        return training
    with working("counting the batches of an epoch"):
        batches = batches_of(task, training, 0).total()
    return replace(training, steps=training.epochs * -(-batches // training.accumulate))


def first_objective(task: Task[Any], training: Training) -> None:
    """Compute the objective of the first batch; random generators are restored."""
    with undisturbed():
        (batch,) = first_batches(task, training, 1)
        task.objective(task.collate(batch))


def warn_of_mechanisms(config: object) -> None:
    """Warn once on standard error of each thing that keeps a mechanism from learning where to look."""
    parts = (config, getattr(config, "cross", None), getattr(config, "encoding", None))
    mechanisms = [mechanism for mechanism in parts if isinstance(mechanism, MechanismConfig)]
    names = [mechanism.without_gradient for mechanism in mechanisms if mechanism.without_gradient]
    if names:
        flag = spelled(names[0], on_command_line)
        note(f"qkv: warning: {flag} gives its scores no gradient: what they compare stays as it is initialized.")
    blurred = [mechanism.score for mechanism in mechanisms if mechanism.blurs]
    if blurred:
        flags = (on_command_line("score", as_flag(blurred[0])), on_command_line("normalizer", "softmax"))
        note(f"qkv: warning: {' '.join(flags)}: {BLURRED}")


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
    kind: ModelKind = "transformer"


def kind_of(table: Mapping[str, Any]) -> ModelKind:
    """Return the kind of a model.

    Args:
        table: its settings.

    Raises:
        ConfigError: it is unknown; the message suggests the closest one.

    Example:
        >>> kind_of({"kind": "GRU"}), kind_of({})
        ('gru', 'transformer')
    """
    return build(_Kind, {name: table[name] for name in ("kind",) if name in table}, "model").kind


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
