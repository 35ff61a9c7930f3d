"""`qkv.train`: training any task from Python, with the settings of its command."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, Generic, Literal, TypedDict, TypeVar, Unpack, cast, final, get_args, overload

from qkv.data.vocabulary import Kind
from qkv.errors import ConfigError, DataError, QkvError, in_python, nearest
from qkv.notebooks import table
from qkv.tasks.element_pointer import ElementPointer
from qkv.tasks.events import listening
from qkv.tasks.generator import Generator
from qkv.tasks.labeler import Classifier, Tagger
from qkv.tasks.load import Model, Task, load
from qkv.tasks.notes import Verbosity, speaking
from qkv.tasks.origin import open_origin, origin_tables
from qkv.tasks.regressor import Regressor
from qkv.tasks.setting_names import FILES, as_tables, setting_of
from qkv.tasks.settings import merge
from qkv.tasks.translator import Translator
from qkv.training.events import Event
from qkv.training.outcome import Outcome

Callback = Callable[[Event], object]
M = TypeVar("M", bound=Model)

Texts = str | Path | Iterable[str]
"""A file, or the texts themselves."""
Pairs = str | Path | Iterable[tuple[str, str]]
"""A file, or the pairs themselves."""
Sentences = str | Path | Iterable[Iterable[tuple[str, str]]]
"""A file with words in columns, or sentences of pairs of a word and its tag."""

Elements = str | Sequence[str] | Sequence[float] | Sequence[Sequence[float]]
"""A text with spaces, or a list of words, numbers or vectors."""
Lists = str | Path | Iterable[Elements]
"""A file, or lists of elements or positions."""
ListPairs = str | Path | Iterable[tuple[Elements, str | Sequence[int]]]
"""A file, or pairs of elements and positions."""


class LoopTable(TypedDict, total=False):
    """Settings of every training, see `qkv.training.settings.Settings`; `batch_tokens` is its `tokens`."""

    steps: int
    epochs: int
    batch_tokens: int
    batch_size: int
    accumulate: int
    optimizer: Literal["adamw", "muon"]
    learning_rate: float
    schedule: Literal["inverse-sqrt", "cosine", "linear", "constant"]
    warmup: int
    betas: tuple[float, float]
    weight_decay: float
    clip: float
    label_smoothing: float
    precision: Literal["float32", "bfloat16", "auto"]
    validate_every: int
    log_every: int
    patience: int
    monitor: str
    keep: int
    seed: int


class AttentionTable(TypedDict, total=False):
    """The mechanism, see docs/how_to/train.md."""

    score: str
    normalizer: str
    alpha: float | Literal["learned"]
    sinks: bool
    bandwidth: float
    power: float
    heads: int
    window: int


class TokenizerTable(TypedDict, total=False):
    """Settings of the tokenizer, see `qkv.tasks.parallel.Words`."""

    tokenizer: Kind
    vocabulary: int
    lowercase: bool
    minimum: int
    unicode: Literal["none", "NFC", "NFD", "NFKC", "NFKD"]


class TranslateSettings(LoopTable, AttentionTable, TokenizerTable, total=False):
    """Settings of `qkv train translate`."""

    source: Texts
    target: Texts
    data: Pairs
    valid_source: Texts
    valid_target: Texts
    valid_data: Pairs
    holdout: int
    source_col: int
    target_col: int
    features_col: int
    source_sep: str
    target_sep: str
    features_sep: str
    features: Literal["front", "separate"]
    source_tokenizer: Kind
    target_tokenizer: Kind
    longest: int
    model: Literal["transformer", "gru", "lstm", "rnn"]
    encoder: str
    decoder: str
    encoder_layers: int
    decoder_layers: int
    width: int
    positions: str
    memory: Literal["whole", "split"]
    wiring: Literal["bahdanau", "luong"]
    copy: Literal["mixture", "joint", "none"]
    alignment: Literal["soft", "monotonic-0", "monotonic-1"]
    dropout: float
    cross_score: str
    cross_normalizer: str
    encoder_score: str
    encoder_normalizer: str
    encoder_heads: int
    ensemble: int
    both_directions: bool


class GenerateSettings(LoopTable, AttentionTable, TokenizerTable, total=False):
    """Settings of `qkv train generate`."""

    text: Texts
    valid_text: Texts
    holdout: float
    model: Literal["transformer", "gru", "lstm", "rnn"]
    layers: int
    width: int
    context: int
    positions: str
    dropout: float
    key_heads: int


class _LabelTable(LoopTable, AttentionTable, TokenizerTable, total=False):
    longest: int
    model: Literal["gru", "lstm", "rnn", "transformer", "none"]
    layers: int
    width: int
    positions: str
    dropout: float


class ClassifySettings(_LabelTable, total=False):
    """Settings of `qkv train classify`; pairs are a label and a text."""

    data: Pairs
    valid_data: Pairs
    pool: Literal["attention", "mean"]


class TagSettings(_LabelTable, total=False):
    """Settings of `qkv train tag`."""

    data: Sentences
    valid_data: Sentences


class PointSettings(LoopTable, total=False):
    """Settings of `qkv train point`; pairs are elements and positions: texts apart by spaces, or lists of numbers."""

    source: Lists
    target: Lists
    data: ListPairs
    valid_source: Lists
    valid_target: Lists
    valid_data: ListPairs
    elements: Literal["numbers", "words"]
    order: Literal["sequence", "cycle", "set"]
    model: str
    decoder: str
    score: str
    once: bool
    width: int
    layers: int
    heads: int
    dropout: float
    vocabulary: int


class RegressSettings(TypedDict, total=False):
    """Settings of `qkv train regress`; rows of numbers end with the target, and x and y are then names for them."""

    data: str | Path | Iterable[Sequence[float]]
    x: str | Sequence[str]
    y: str
    decimal: Literal["point", "comma"]
    missing: Literal["refuse", "skip"]
    kernel: Literal["gaussian", "epanechnikov", "triangular", "boxcar"]
    bandwidth: float | Sequence[float] | Literal["cross-validation", "learned"]
    beyond: Literal["nearest", "mean", "nan"]


SETTINGS: Mapping[str, type[Any]] = MappingProxyType(
    {
        "translate": TranslateSettings,
        "generate": GenerateSettings,
        "classify": ClassifySettings,
        "tag": TagSettings,
        "point": PointSettings,
        "regress": RegressSettings,
    }
)
"""The settings of each task."""


@final
@dataclass(frozen=True, repr=False)
class Run(Generic[M]):
    """A run that `qkv.train` trained.

    Args:
        folder: its folder, as for every command.
        outcome: how the training ended, with the figures of the last validation.
    """

    folder: Path
    outcome: Outcome

    def load(self, device: str = "cpu") -> M:
        """Return the model of the best checkpoint, ready to use."""
        return cast("M", load(self.folder, device))

    def _rows(self) -> list[tuple[str, str]]:
        outcome = self.outcome
        rows = [("folder", str(self.folder)), ("ended", f"{outcome.reason}, after {outcome.step:,} steps")]
        if outcome.best is not None:
            rows.append(("best", f"{outcome.best.name} {outcome.best.value:.4g}, at step {outcome.best_step:,}"))
        return [*rows, *((figure.name, f"{figure.value:.4g}") for figure in outcome.figures)]

    def __repr__(self) -> str:
        """Return folder, end and figures; `outcome` has everything."""
        return f"Run({', '.join(f'{name}: {text}' for name, text in self._rows())})"

    def _repr_html_(self) -> str:
        """Return folder, end and figures for a notebook."""
        return table(self._rows())


@overload
def train(
    task: Literal["translate"],
    *,
    out: str | Path,
    device: str = ...,
    start: str | Path | None = ...,
    callbacks: Sequence[Callback] = ...,
    quiet: bool = ...,
    **settings: Unpack[TranslateSettings],
) -> Run[Translator]: ...
@overload
def train(
    task: Literal["generate"],
    *,
    out: str | Path,
    device: str = ...,
    start: str | Path | None = ...,
    callbacks: Sequence[Callback] = ...,
    quiet: bool = ...,
    **settings: Unpack[GenerateSettings],
) -> Run[Generator]: ...
@overload
def train(
    task: Literal["classify"],
    *,
    out: str | Path,
    device: str = ...,
    start: str | Path | None = ...,
    callbacks: Sequence[Callback] = ...,
    quiet: bool = ...,
    **settings: Unpack[ClassifySettings],
) -> Run[Classifier]: ...
@overload
def train(
    task: Literal["tag"],
    *,
    out: str | Path,
    device: str = ...,
    start: str | Path | None = ...,
    callbacks: Sequence[Callback] = ...,
    quiet: bool = ...,
    **settings: Unpack[TagSettings],
) -> Run[Tagger]: ...
@overload
def train(
    task: Literal["point"],
    *,
    out: str | Path,
    device: str = ...,
    start: str | Path | None = ...,
    callbacks: Sequence[Callback] = ...,
    quiet: bool = ...,
    **settings: Unpack[PointSettings],
) -> Run[ElementPointer]: ...
@overload
def train(
    task: Literal["regress"],
    *,
    out: str | Path,
    device: str = ...,
    start: str | Path | None = ...,
    callbacks: Sequence[Callback] = ...,
    quiet: bool = ...,
    **settings: Unpack[RegressSettings],
) -> Run[Regressor]: ...
def train(
    task: str,
    *,
    out: str | Path,
    device: str = "cpu",
    start: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    quiet: bool = False,
    **settings: Any,
) -> Run[Any]:
    """Train a model, or resume a run, as `qkv train TASK` does.

    Args:
        task: "translate", "generate", "classify", "tag", "point" or "regress".
        out: the run folder; the same call again resumes.
        device: compute device.
        start: a run whose weights and tokenizer are used at the start.
        callbacks: functions that get every event of the training (`qkv.training.events`): each update with its loss,
            each line of the log, each validation, each checkpoint. What they raise ends the training.
        quiet: whether to show no progress on standard error.
        settings: those of the task's class in `SETTINGS`: the flags of its command, and every setting of
            `qkv.training.settings.Settings`. Where a command takes a file, an iterable of texts, of pairs, or of
            sentences of words with tags will do.

    Returns:
        The run: its folder, its outcome, and `load()` for the model.

    Raises:
        ConfigError: a setting is unknown (the message suggests the closest one), or its value is invalid.
        DataError: the data is invalid; the message gives file and line, or the number of the item.
        QkvError: any other bad input; nothing already saved is lost.

    Example:
        >>> train("translate", out="run", stepz=5)
        Traceback (most recent call last):
        qkv.errors.ConfigError: stepz: expected a setting of translate; got an unknown one. Did you mean "steps"?
    """
    if task not in SETTINGS:
        expected = f"one of {', '.join(get_args(Task))}"
        raise ConfigError("task", expected, repr(task)[:80], nearest(str(task), list(SETTINGS)))
    for name in settings:
        if name not in SETTINGS[task].__annotations__:
            hint = nearest(name, list(SETTINGS[task].__annotations__))
            raise ConfigError(name, f"a setting of {task}", "an unknown one", hint)
    if not isinstance(callbacks, Sequence) or not all(map(callable, callbacks)):
        got = "one function" if callable(callbacks) else ascii(callbacks)[:80]
        raise ConfigError("callbacks", "a sequence of functions", got, "Write callbacks=[function].")
    recipe = _recipe(task)
    origin = open_origin(None if start is None else Path(start), task, None)
    with _as_files(task, settings) as given, listening(callbacks), speaking(Verbosity("quiet" if quiet else "normal")):
        tables = merge(origin_tables(origin), as_tables(task, given))
        with _named_as_given(task, given):
            outcome = recipe.train(recipe.load_settings(tables), Path(out), device, tensorboard=False, origin=origin)
    return Run(Path(out), outcome)


@contextmanager
def _named_as_given(task: str, settings: Mapping[str, Any]) -> Iterator[None]:
    """Let errors name settings as `train` does, not as the tables of a settings file do."""
    try:
        yield
    except QkvError as error:
        names = {setting_of(task, name): name for name in (*SETTINGS[task].__annotations__, *settings)}
        named = error.about(names.get(error.argument, error.argument))
        raise named.respelled(lambda name, value: in_python(names.get(name, name), value)) from error


def _recipe(task: str) -> Any:
    """Return the recipe of a task, importing its models alone."""
    match task:
        case "translate":
            from qkv.tasks.ensembles import RECIPE as TRANSLATE

            return TRANSLATE
        case "generate":
            from qkv.tasks.language_training import RECIPE as GENERATE

            return GENERATE
        case "classify" | "tag":
            from qkv.tasks.label_training import RECIPES

            return RECIPES[task]
        case "point":
            from qkv.tasks.point_training import RECIPE as POINT

            return POINT
        case _:
            from qkv.tasks.regression import RECIPE as REGRESS

            return REGRESS


@contextmanager
def _as_files(task: str, settings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Write data that is given as values to files of their own, for as long as the training reads them."""
    with TemporaryDirectory(prefix="qkv-") as folder:
        given, written = dict(settings), dict[str, str]()
        if isinstance(given.get("x"), str):
            given["x"] = [given["x"]]
        if task == "regress" and not isinstance(given.get("data", ""), str | Path):
            given = _with_columns(given)
        for name in FILES:
            item = given.get(name)
            if item is None or isinstance(item, str | Path):
                continue
            path = Path(folder, f"{name}.txt")
            lines = "".join(_lines(task, name, item))
            if not lines:
                raise DataError(name, "at least one item", "none", "Was an iterator already read?")
            path.write_bytes(lines.encode())
            given[name], written[str(path)] = path, name
        try:
            yield given
        except QkvError as error:
            if not written:
                raise
            paths = re.compile("|".join(map(re.escape, written)))
            raise error.reworded(lambda text: paths.sub(lambda path: written[path[0]], text)) from error


def _with_columns(given: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a regression on rows of numbers, headed by the columns' names; usually the last is y."""
    rows = [tuple(row) for row in given["data"]]
    width = len(rows[0]) if rows else 0
    count = max(0, width - 1)
    x, y = given.get("x", [f"x{n}" for n in range(1, width)] if count > 1 else ["x"]), given.get("y", "y")
    names = (*x, y)
    for number, row in enumerate(rows, start=1):
        if len(row) != len(names) or not all(isinstance(cell, int | float) for cell in row):
            expected = f"{len(names)} numbers, for {', '.join(map(str, names))}"
            raise DataError(f"data:{number}", expected, repr(row)[:80], "For example (1.5, 20.0).")
    return {**given, "x": list(x), "y": y, "data": [names, *rows] if rows else []}


def _lines(task: str, name: str, items: Iterable[Any]) -> Iterator[str]:
    """Return the lines of a file as the task's command reads it."""
    for number, item in enumerate(items, start=1):
        where = f"{name}:{number}"
        if task == "regress":
            yield "\t".join(f'"{cell}"' if isinstance(cell, str) else repr(float(cell)) for cell in item) + "\n"
        elif task == "point":
            yield (
                _row([_elements(side) for side in item], where)
                if "data" in name
                else f"{_text(_elements(item), where)}\n"
            )
        elif name in ("text", "valid_text"):
            yield f"{_text(item, where, breaks=True)}\n"
        elif name in ("data", "valid_data") and task == "tag":
            yield from (_row(pair, f"{where}, word {place}") for place, pair in enumerate(item, start=1))
            yield "\n"
        elif name in ("data", "valid_data"):
            yield _row(item, where)
        else:
            yield f"{_text(item, where)}\n"


def _elements(side: Any) -> Any:
    """Return elements or positions as one text: apart by spaces, the numbers of a vector by commas."""
    if isinstance(side, str) or not isinstance(side, Iterable):
        return side
    return " ".join(",".join(map(str, one)) if isinstance(one, tuple | list) else str(one) for one in side)


def _row(pair: Any, where: str) -> str:
    if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
        raise DataError(where, "a pair of texts", repr(pair)[:80], 'For example ("ein Hund", "a dog").')
    return "\t".join(_text(one, where) for one in pair) + "\n"


def _text(item: Any, where: str, *, breaks: bool = False) -> str:
    if not isinstance(item, str):
        raise DataError(where, "a text", type(item).__name__, "Give strings.")
    if not breaks and (found := next((mark for mark in "\n\r\t" if mark in item), None)) is not None:
        got = f"one with {found!r}"
        raise DataError(where, "a text without tabs and line breaks", got, "Replace it by a space.")
    return item
