"""What the settings of a task are, and the tables that tasks share.

It imports nothing large, because commands read it when they start.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from inspect import Parameter, Signature, signature
from itertools import permutations
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, final

from qkv.checkpoint.former_names import FORMER_NAMES
from qkv.data.choices import Form, LineKind, Separator, TokenizerKind
from qkv.data.columns import Column, TextColumns, is_name
from qkv.data.report import KINDS
from qkv.data.word_table import WordTable
from qkv.errors import ConfigError, nearest, setting
from qkv.nn.mechanism import ATTENTION
from qkv.settings import Option, help_of, hints_of, options_of

Texts = Path | str | Iterable[str]
"""A file, or the texts themselves."""
Pairs = Path | str | Iterable[tuple[str, str]]
"""A file, or the pairs themselves."""

_OF_SYMBOLS = ("source_sep", "target_sep", "features_col", "features_sep", "features")
"""Settings that only columns of symbols have."""
LEARNING_RATE: Mapping[str, float] = MappingProxyType({"gru": 3e-3, "lstm": 3e-3, "rnn": 3e-3, "others": 1e-3})
"""Peak learning rates of AdamW by kind of model, chosen on validation data (docs/project/results.md)."""
DATA, RUN, MODEL, TRAINING = "Data", "Run", "Model", "Training"
COLUMNS = "Columns"
BATCH_WORK = "Batch work"
START = "Start here"
TOPICS = (START, DATA, COLUMNS, RUN, MODEL, ATTENTION, TRAINING)
"""The topics of the help, in its order."""
COMMON = ("source", "target", "data", "text", "x", "y", "out", "model", "score", "steps", "minutes", "seed")
"""The flags that most trainings have; they are the first topic of the help, in this order."""
_TOPIC_OF: Mapping[str, str] = MappingProxyType(
    {"data": DATA, "tokenizer": DATA, "model": MODEL, "training": TRAINING, "ensemble": TRAINING}
)


def longest_option(what: str, usual: int) -> Option:
    """Return the option of a maximum length whose default is the usual one, or what a published model reads."""
    or_else = f"{usual} tokens, or the context of a published model if that is less"
    return Option(f"Maximum length of {what}", "tokens", least=1, or_else=or_else)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What a training command has besides the settings of the run."""

    out: Annotated[Path | None, Option("The run folder; the same command again resumes (required).")] = None
    config: Annotated[Path | None, Option("Settings as a TOML file; flags override it.")] = None
    print_config: Annotated[bool, Option("Show all settings as TOML and exit.")] = False


Device = Annotated[str, Option("Device, such as cpu or cuda.")]


@dataclass(frozen=True, kw_only=True)
class LoopOptions(RunOptions):
    """The same of a task that trains step by step."""

    device: Device = "cpu"
    start: Annotated[
        Path | None, Option("Initialize with the weights of another run, or of a folder of transformers.", flag="from")
    ] = None
    tensorboard: Annotated[bool, Option("Also log to TensorBoard (extra: log).")] = False
    processes: Annotated[
        int | None,
        Option(
            "Train with so many processes of this machine, which share each batch (parts).",
            least=1,
            hint="Omit it for one process.",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class TextOptions(LoopOptions):
    """The same of a task that reads text."""

    tokenizer_from: Annotated[Path | None, Option("Use the tokenizer of another run, of any task.")] = None


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What a command that uses a trained model is given; the text of a table below is the help of its command."""

    as_trained: ClassVar[frozenset[str]] = frozenset()
    """The settings that are by default those of the training."""


@dataclass(frozen=True, kw_only=True)
class DeviceSettings(RunSettings):
    """The same for a model that can compute elsewhere than on the CPU."""

    device: Device = "cpu"


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings(DeviceSettings):
    """Score a model with the same code as training. `qkv evaluate RUN --help` lists the flags of the run's task.

    Example: qkv evaluate runs/de-en --source test.de --target test.en
    """


@dataclass(frozen=True, kw_only=True)
class AnswersEvaluation(EvaluationSettings):
    """The same for a model that writes an answer for each line or row."""

    out: Annotated[Path | None, Option("Also write the model's output to this file", writes=())] = None


@dataclass(frozen=True, kw_only=True)
class LabelsEvaluation(AnswersEvaluation):
    """The same for a model that labels texts or words."""

    report: Annotated[
        bool, Option("Also write precision, recall, F1 and support of each label or type, and what was confused")
    ] = False


MOST_MODELS = 100
"""The most models of an ensemble."""
PICTURES = (".html", ".svg", ".png", ".pdf")
"""The suffixes of pages and pictures of alignments."""


@dataclass(frozen=True, kw_only=True)
class AnswerSettings(RunSettings):
    """What a command that answers is given."""

    several: ClassVar[bool] = False
    """Whether several runs can answer together."""

    attention: Annotated[
        Path | None, Option("Also draw the attention: FILE.html, FILE.svg, FILE.png or FILE.pdf", writes=PICTURES)
    ] = None
    show: Annotated[bool, Option("Also draw the attention in the terminal, on standard error")] = False


@dataclass(frozen=True, kw_only=True)
class RequestSettings:
    """What a request to `qkv serve` can set; a task extends it."""

    rows: ClassVar[bool] = False
    """Whether inputs are rows of numbers, in place of texts."""

    @property
    def draws(self) -> bool:
        """Whether answers depend on chance, and so on how often an input was there before."""
        return False


@dataclass(frozen=True, kw_only=True)
class LineAnswers(AnswerSettings):
    """The same for a command that answers the lines of standard input."""

    line_buffered: Annotated[bool, Option("Answer each line as it comes, for pipes; slower")] = False


@dataclass(frozen=True, kw_only=True)
class ShardSettings(RunSettings):
    """Files that a command answers in place of standard input, with any number of processes."""

    shards: Annotated[
        str | None,
        Option(
            "Answer these files, as 'in/*.txt' in quotes. Any number of processes can run the same command",
            topic=BATCH_WORK,
        ),
    ] = None
    out: Annotated[Path | None, Option("With --shards: the folder of the answers", topic=BATCH_WORK)] = None

    def expect_both(self, *others: str) -> None:
        """Check that both settings are given or neither.

        Args:
            others: settings that do not apply to these files.

        Raises:
            ConfigError: one is missing, or one of the others is given.
        """
        if self.shards is None:
            if self.out is not None:
                got, hint = "no " + setting("shards"), "It is the folder of the answers to shards."
                raise ConfigError("out", setting("shards") + " as well", got, hint)
            return
        if self.out is None:
            hint = "It is the folder of the answers, which processes share."
            raise ConfigError("shards", setting("out") + " as well", "no " + setting("out"), hint)
        for name in others:
            if getattr(self, name):
                hint = "Omit it, or give one file without shards."
                raise ConfigError(name, "no " + setting("shards") + " beside it", "both", hint)


@dataclass(frozen=True, kw_only=True)
class ShardAnswers(LineAnswers, ShardSettings):
    """The same for a command that answers the lines of standard input or of such files."""

    def __post_init__(self) -> None:
        self.expect_both("attention", "show", "line_buffered")


@dataclass(frozen=True, kw_only=True)
class PairData:
    """Pairs of lines: two parallel files, or one TSV file."""

    source: Annotated[Texts | None, Option("Source sentences, one per line (.gz too)")] = None
    target: Annotated[Texts | None, Option("Their translations, line by line")] = None
    data: Annotated[Pairs | None, Option("Or one file with source<TAB>target on each line")] = None


@dataclass(frozen=True, kw_only=True)
class SkipSettings:
    """What is left out of the data of a training."""

    skip: Annotated[
        Sequence[LineKind], Option(f"Kinds of lines to leave out, as qkv check reports them: {', '.join(KINDS)}")
    ] = ()


@dataclass(frozen=True, kw_only=True)
class PairFiles(SkipSettings, PairData):
    """Pairs of lines to train on and to validate on."""

    valid_source: Annotated[Texts | None, Option("Sources to validate on; held out if not given")] = None
    valid_target: Annotated[Texts | None, Option("Their translations")] = None
    valid_data: Annotated[Pairs | None, Option("Or one file with source<TAB>target")] = None


def column(help: str, or_else: object = None) -> Option:
    """Return the option of a setting that says how columns are read, with its default."""
    return Option(help, topic=COLUMNS, or_else=or_else)


@dataclass(frozen=True, kw_only=True)
class SeparatorSettings:
    """What separates columns."""

    sep: Annotated[
        Separator | None,
        column("What separates columns", "by the ending .tsv; else what splits most of the first 1,000 lines evenly"),
    ] = None


def columns_of(files: Any) -> dict[str, Any]:
    """Return those settings of columns that are given.

    Example:
        >>> columns_of(SeparatorSettings(sep="comma")), columns_of(SeparatorSettings())
        ({'sep': 'comma'}, {})
    """
    table: Any = type(files)
    given = {name: getattr(files, name) for name, option in options_of(table).items() if option.topic == COLUMNS}
    return {name: item for name, item in given.items() if item not in (None, ())}


_FEATURES = column("Column of features such as V;PST; 0 for none", WordTable.features_col)


@dataclass(frozen=True, kw_only=True)
class SourceColumns:
    """The columns of what a model reads, each None if it is not given."""

    source_col: Annotated[int | None, column("Column of the source, from 1", WordTable.source_col)] = None
    features_col: Annotated[int | None, _FEATURES] = None


@dataclass(frozen=True, kw_only=True)
class TextPairColumns(SeparatorSettings):
    """The columns of pairs of texts, each None if it is not given."""

    source_col: Annotated[
        Column | None, column("Column of the source: its position, or its name in the first line", 1)
    ] = None
    target_col: Annotated[Column | None, column("Column of the target, likewise", WordTable.target_col)] = None

    @property
    def texts(self) -> TextColumns:
        """The columns of texts."""
        return TextColumns(("source", "target"), (self.source_col, self.target_col), self.sep)

    def with_default(self, default: WordTable | None) -> WordTable | None:
        """Return the columns of symbols that a model was trained on, if any, with those that are given here.

        Raises:
            ConfigError: a column is out of range, or two are the same; or they are not separated by tabs.
        """
        if default is None:
            return None
        if self.sep not in (None, "tab"):
            hint = "Write the symbols to a TSV file."
            raise ConfigError(setting("sep"), "tab between columns of symbols", f"{self.sep}", hint)
        values = {item.name: getattr(self, item.name, None) for item in fields(WordTable)}
        return replace(default, **{name: _as_position(value) for name, value in values.items() if value is not None})


@dataclass(frozen=True, kw_only=True)
class PairColumns(TextPairColumns):
    """The columns of pairs, of texts or of symbols (`qkv.data.word_table.WordTable`), each None if it is not given.

    Raises:
        ConfigError: a column is out of range, or two are the same; or settings of symbols are beside texts, or the
            other way round.
    """

    features_col: Annotated[Column | None, _FEATURES] = None
    source_sep: Annotated[
        str | None, column('Separates the symbols of a source; "" if each character is one', WordTable.source_sep)
    ] = None
    target_sep: Annotated[
        str | None, column('Separates the symbols of a target, such as " "', WordTable.target_sep)
    ] = None
    features_sep: Annotated[str | None, column("Separates features", WordTable.features_sep)] = None
    cells: Annotated[
        Literal["symbols", "texts"] | None,
        column("What the columns hold", "texts if columns are given by name, or sep is; else symbols"),
    ] = None

    def __post_init__(self) -> None:
        of_symbols = [name for name in _OF_SYMBOLS if getattr(self, name, None) is not None]
        if self.cells == "texts" and of_symbols:
            hint = "Omit it, or the other one."
            raise ConfigError(setting(of_symbols[0]), "columns of symbols", setting("cells", "texts"), hint)
        if self._has_symbols:
            self.with_default(WordTable())

    @property
    def table(self) -> WordTable | None:
        """The columns of symbols of the TSV files; None if no column and no separator is given, or they hold texts."""
        given = any(getattr(self, item.name, None) is not None for item in fields(WordTable))
        return self.with_default(WordTable()) if given and self._has_symbols else None

    @property
    def _has_symbols(self) -> bool:
        if self.cells is not None:
            return self.cells == "symbols"
        columns = (self.source_col, self.target_col)
        texts = self.sep is not None or any(is_name(column) for column in columns)
        return any(getattr(self, name, None) is not None for name in _OF_SYMBOLS) or not texts

    @property
    def texts(self) -> TextColumns:
        """The columns of texts."""
        return TextColumns(("source", "target")) if self.table is not None else super().texts


def _as_position(value: Any) -> Any:
    """Return a position that a command line gave as a text as a number."""
    return int(value) if isinstance(value, str) and value.removeprefix("-").isdecimal() else value


@dataclass(frozen=True, kw_only=True)
class WordTableSettings(PairColumns):
    """All fields of a `qkv.data.word_table.WordTable`."""

    features: Annotated[
        Literal["front", "separate"] | None,
        column("Features stand before the source, or are a source with an attention of its own", WordTable.features),
    ] = None


TOKENIZERS = "Byte pairs or pieces of bytes, words, characters, or none for tokens that spaces separate already"


@dataclass(frozen=True, kw_only=True)
class TokenizerSettings:
    """Tokenizer settings; the tokenizer is learned from the training text."""

    tokenizer: Annotated[TokenizerKind, Option(TOKENIZERS)] = "bpe"
    vocabulary: Annotated[int, Option("Maximum vocabulary size", "tokens", least=1)] = 8000
    minimum: Annotated[int, Option("Minimum frequency of a token", least=1)] = 2
    unicode: Annotated[
        Form,
        Option("Unicode form that text is brought to; NFC makes one character of a letter and its accents"),
    ] = "NFC"
    lowercase: Annotated[bool, Option("Lower-case all text")] = False


@final
@dataclass(frozen=True)
class TaskSettings:
    """The settings of a task: of its command, its settings file, `qkv.train` and its reference page.

    Args:
        name: of the task, as in `qkv train NAME`.
        help: of its command.
        tables: its tables of settings, by name: a class, or a union of the configurations of several kinds of model.
        defaults: defaults that are the task's own, by table and name; a mapping has one for each kind of model, and one
            for "others".
        options: what the command has besides.
        evaluation: what `qkv evaluate` is given for a run of the task.
        answers: what the command of the task's name is given, which answers by a trained model; None for no command.
        requests: what a request to `qkv serve` can set; None for a task that it does not serve.
    """

    name: str
    help: str
    tables: Mapping[str, Any]
    defaults: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    options: type[RunOptions] = TextOptions
    evaluation: type[EvaluationSettings] = EvaluationSettings
    answers: type[AnswerSettings] | None = None
    requests: type[RequestSettings] | None = None

    @cached_property
    def table_of(self) -> dict[str, str]:
        """The table of each setting."""
        return {name: table for table, cls in self.tables.items() for name in options_of(cls)}

    @property
    def names_of_data(self) -> list[str]:
        """The settings that determine what is read: those of data and tokenizer, and the seed of what is held out.

        Example:
            >>> from qkv.training_settings import Settings
            >>> TaskSettings("sort", "", {"data": PairData, "training": Settings}).names_of_data
            ['source', 'target', 'data', 'seed']
        """
        return [name for name, table in self.table_of.items() if table in ("data", "tokenizer") or name == "seed"]

    def help_of(self, name: str) -> str:
        """Describe a setting with this task's default."""
        table = self.table_of[name]
        defaults = self.defaults.get(table, {})
        return help_of(self.tables[table], name, *([defaults[name]] if name in defaults else []))

    def defaults_for(self, kind: object) -> dict[str, dict[str, object]]:
        """Return the task's own defaults, of those that differ by kind of model the one for a kind.

        Example:
            >>> rates = {"gru": 0.003, "others": 0.001}
            >>> TaskSettings("sort", "", {}, {"training": {"learning_rate": rates}}).defaults_for("gru")
            {'training': {'learning_rate': 0.003}}
        """
        return {
            table: {
                name: default.get(kind, default["others"]) if isinstance(default, Mapping) else default
                for name, default in defaults.items()
            }
            for table, defaults in self.defaults.items()
        }

    def topic_of(self, name: str) -> str:
        """Return the part of the help in which the flag of a setting stands."""
        if name in COMMON:
            return START
        table = self.table_of[name]
        return options_of(self.tables[table])[name].topic or _TOPIC_OF.get(table, table.capitalize())

    def expect_settings(self, names: Iterable[str]) -> None:
        """Refuse settings that the task does not have.

        Raises:
            ConfigError: there is one; the message suggests the closest setting of the task.
        """
        former = {dotted.partition(".")[2]: today for dotted, today in FORMER_NAMES.get(self.name, {}).items()}
        for name in names:
            if name not in self.table_of:
                today = former.get(name)
                hint = f"Its name is {today}." if today else nearest(name, self.table_of)
                raise ConfigError(name, f"a setting of {self.name}", "an unknown one", hint)

    def in_tables(self, settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Return settings by table and name; None is left out.

        Example:
            >>> from qkv.training_settings import Settings
            >>> TaskSettings("sort", "", {"training": Settings}).in_tables({"steps": 5, "seed": None})
            {'training': {'steps': 5}}
        """
        by_table: dict[str, dict[str, Any]] = {}
        for name, item in settings.items():
            if item is not None:
                by_table.setdefault(self.table_of[name], {})[name] = item
        return by_table

    def expect_todays_names(self, tables: Mapping[str, Any]) -> None:
        """Refuse names that settings once had.

        Raises:
            ConfigError: there is one; the message gives today's name.

        Example:
            >>> from qkv.training_settings import Settings
            >>> TaskSettings("tag", "", {"training": Settings}).expect_todays_names({"training": {"tokens": 512}})
            Traceback (most recent call last):
            qkv.errors.ConfigError: training.tokens: expected its name of today, batch_tokens; got a name of ...
        """
        former = FORMER_NAMES.get(self.name, {})
        for table, rows in tables.items():
            for name in rows if isinstance(rows, Mapping) else ():
                dotted = f"{table}.{name}"
                if dotted in former and self.table_of.get(name) != table:
                    today = former[dotted]
                    hint = f"Rename it: write {today} in place of {name}." if today else "Omit it: it had no effect."
                    expected = f"its name of today, {today}" if today else "a known setting"
                    raise ConfigError(dotted, expected, "a name of earlier versions", hint)

    def expect_one(self, tables: Mapping[str, Mapping[str, Any]]) -> None:
        """Refuse a setting beside the one that it replaces.

        Raises:
            ConfigError: both are given.
        """
        for table, cls in self.tables.items():
            present, options = tables.get(table, {}), options_of(cls)
            for name, other in permutations(present, 2):
                replaced = options[name].instead_of if name in options else ""
                if replaced and other in options and replaced in (other, options[other].instead_of):
                    hint = "They set the same: omit one of them."
                    raise ConfigError(name, "no " + setting(other) + " beside it", "both", hint)

    def replaced(self, table: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return a table without the settings that others replace."""
        options = options_of(self.tables[table])
        gone = {options[name].instead_of for name in settings if name in options}
        return {name: item for name, item in settings.items() if name not in gone}


def take_settings(function: Callable[..., object], settings: Iterable[Parameter]) -> None:
    """Show settings in the signature of a function, in place of its `**settings`."""
    *named, _ = signature(function).parameters.values()
    function.__signature__ = Signature([*named, *settings])  # type: ignore[attr-defined]


def parameters(tasks: Iterable[TaskSettings]) -> Sequence[Parameter]:
    """Return the settings of tasks as keyword parameters; of tasks that share a name, the first gives its type."""
    by_name: dict[str, Parameter] = {}
    for task in tasks:
        for table in task.tables.values():
            for name, hint in hints_of(table).items():
                if name in options_of(table) and name not in by_name:
                    by_name[name] = Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=hint)
    return list(by_name.values())
