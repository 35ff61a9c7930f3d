"""`qkv.train`: training any task from Python, with the settings of its command."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Protocol, TypeVar, cast, final, overload

from qkv.errors import ConfigError, expect_name, quantity
from qkv.files import as_path
from qkv.models.configs.fields import ModelKind
from qkv.models.configs.language_model import DecoderConfig, RecurrentDecoderConfig
from qkv.models.configs.pointer import PointerConfig
from qkv.models.configs.reader import ClassifierConfig, ReaderConfig
from qkv.models.configs.translator import MonotonicConfig, RecurrentConfig, TransformerConfig
from qkv.notebooks import table
from qkv.tasks import run as training
from qkv.tasks.catalog import TASKS, recipe_of
from qkv.tasks.classify.settings import ClassifyFiles
from qkv.tasks.generate.settings import GenerateFiles, GenerateTokenizer
from qkv.tasks.listeners import listening
from qkv.tasks.load import load
from qkv.tasks.notes import Verbosity, use_verbosity
from qkv.tasks.point.settings import PointFiles
from qkv.tasks.regress.settings import RegressFiles, RegressModel
from qkv.tasks.settings import TokenizerSettings, parameters, take_settings
from qkv.tasks.tag.settings import TagFiles
from qkv.tasks.translate.settings import MemberSettings, TranslateFiles, TranslateTokenizer
from qkv.training.events import Callback, Outcome
from qkv.training.screen import show_figures
from qkv.training_settings import Settings as Training

if TYPE_CHECKING:
    from qkv.tasks.classify.predict import Classifier
    from qkv.tasks.generate.predict import Generator
    from qkv.tasks.point.predict import ElementPointer
    from qkv.tasks.regress.predict import Regressor
    from qkv.tasks.tag.predict import Tagger
    from qkv.tasks.translate.predict import Translator

M = TypeVar("M")
Translate = ParamSpec("Translate")
Generate = ParamSpec("Generate")
Classify = ParamSpec("Classify")
Tag = ParamSpec("Tag")
Point = ParamSpec("Point")
Regress = ParamSpec("Regress")


@dataclass(frozen=True, kw_only=True)
class CallSettings:
    """What `train` takes besides the settings of a task."""

    out: str | Path
    device: str = "cpu"
    start: str | Path | None = None
    callbacks: Sequence[Callback] = ()
    processes: int | None = None
    quiet: bool = False


# One class for each task gives editors and type checkers the arguments of `train`.
@dataclass(frozen=True, kw_only=True)
class SizesOfData:
    """What the data determines: no arguments."""

    size: int = field(init=False)
    source_size: int | None = field(init=False)
    features_mark: int | None = field(init=False)
    labels: int = field(init=False)


@dataclass(frozen=True, kw_only=True)
class TranslateSettings(
    SizesOfData,
    CallSettings,
    TranslateFiles,
    TranslateTokenizer,
    TransformerConfig,
    RecurrentConfig,
    MonotonicConfig,
    Training,
    MemberSettings,
):
    """All arguments to train a translator."""

    model: ModelKind = "transformer"  # type: ignore[assignment]  # that of any configuration
    alignment: Literal["soft", "monotonic-0", "monotonic-1"] = "soft"  # type: ignore[assignment]


@dataclass(frozen=True, kw_only=True)
class GenerateSettings(
    SizesOfData, CallSettings, GenerateFiles, GenerateTokenizer, DecoderConfig, RecurrentDecoderConfig, Training
):
    """All arguments to train a language model."""

    model: ModelKind = "transformer"  # type: ignore[assignment]


@dataclass(frozen=True, kw_only=True)
class ClassifySettings(SizesOfData, CallSettings, ClassifyFiles, TokenizerSettings, ClassifierConfig, Training):
    """All arguments to train a classifier; pairs are a label and a text."""


@dataclass(frozen=True, kw_only=True)
class TagSettings(SizesOfData, CallSettings, TagFiles, TokenizerSettings, ReaderConfig, Training):
    """All arguments to train a tagger."""


@dataclass(frozen=True, kw_only=True)
class PointSettings(CallSettings, PointFiles, PointerConfig, Training):
    """All arguments to train a pointer network; pairs are elements and positions, as texts or lists of numbers."""

    features: int = field(init=False)


@dataclass(frozen=True, kw_only=True)
class RegressSettings(CallSettings, RegressFiles, RegressModel):
    """All arguments to fit a regression; rows of numbers end with the target, and x and y are then names for them."""


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
        rows = [("folder", str(self.folder)), ("ended", f"{outcome.reason}, after {quantity(outcome.step, 'step')}")]
        if outcome.best is not None:
            rows.append(("best", f"{show_figures([outcome.best])}, at step {outcome.best_step:,}"))
        return [*rows, *((figure.name, f"{figure.value:.4g} {figure.unit}".rstrip()) for figure in outcome.figures)]

    def __repr__(self) -> str:
        """Return folder, end and figures; `outcome` has everything."""
        return f"Run({', '.join(f'{name}: {text}' for name, text in self._rows())})"

    def _repr_html_(self) -> str:
        """Return folder, end and figures for a notebook."""
        return table(self._rows())


class Train(Protocol[Translate, Generate, Classify, Tag, Point, Regress]):
    """The type of `train`: for each task, its settings and the class of its trained model."""

    @overload
    def __call__(
        self, task: Literal["translate"], /, *args: Translate.args, **settings: Translate.kwargs
    ) -> "Run[Translator]": ...
    @overload
    def __call__(
        self, task: Literal["generate"], /, *args: Generate.args, **settings: Generate.kwargs
    ) -> "Run[Generator]": ...
    @overload
    def __call__(
        self, task: Literal["classify"], /, *args: Classify.args, **settings: Classify.kwargs
    ) -> "Run[Classifier]": ...
    @overload
    def __call__(self, task: Literal["tag"], /, *args: Tag.args, **settings: Tag.kwargs) -> "Run[Tagger]": ...
    @overload
    def __call__(
        self, task: Literal["point"], /, *args: Point.args, **settings: Point.kwargs
    ) -> "Run[ElementPointer]": ...
    @overload
    def __call__(
        self, task: Literal["regress"], /, *args: Regress.args, **settings: Regress.kwargs
    ) -> "Run[Regressor]": ...


def _with_settings(
    translate: Callable[Translate, object],
    generate: Callable[Generate, object],
    classify: Callable[Classify, object],
    tag: Callable[Tag, object],
    point: Callable[Point, object],
    regress: Callable[Regress, object],
) -> Callable[[Callable[..., Run[Any]]], Train[Translate, Generate, Classify, Tag, Point, Regress]]:
    """Give a function the settings of all tasks as keyword arguments, for `inspect.signature` and type checkers."""

    def decorate(function: Callable[..., Run[Any]]) -> Train[Translate, Generate, Classify, Tag, Point, Regress]:
        take_settings(function, parameters(TASKS.values()))
        return cast("Train[Translate, Generate, Classify, Tag, Point, Regress]", function)

    return decorate


@_with_settings(TranslateSettings, GenerateSettings, ClassifySettings, TagSettings, PointSettings, RegressSettings)
def train(
    task: str,
    *,
    out: str | Path,
    device: str = "cpu",
    start: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    processes: int | None = None,
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
        processes: how many processes of this machine share an update's batches (`accumulate`); any number gives the
            same weights. Data must then be files, or values of texts and numbers. None for one, or for those of
            `torchrun`, which runs the whole program.
        quiet: whether to show no progress on standard error.
        settings: the flags of the task's command, see the page of all settings. Where a command takes a file, an
            iterable of texts, of pairs, or of sentences of words with tags will do.

    Returns:
        The run: its folder, its outcome, and `load()` for the model.

    Raises:
        ConfigError: a setting is unknown (the message suggests the closest one), or its value is invalid.
        DataError: the data is invalid; the message gives file and line, or the number of the item.
        QkvError: any other bad input, or another process ended; nothing already saved is lost.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> table = [(float(x), 2.0 * x) for x in range(20)]  # y = 2x
        >>> with TemporaryDirectory() as folder:
        ...     run = train("regress", data=table, out=folder, bandwidth=0.5, quiet=True)
        ...     print(run.outcome.reason, round(float(run.load().predict([[7.5]])[0]), 2))
        finished 15.0
        >>> train("translate", out="run", stepz=5)
        Traceback (most recent call last):
        qkv.errors.ConfigError: stepz: expected a setting of translate; got an unknown one. Did you mean "steps"?
    """
    task_settings = TASKS[expect_name("task", task, TASKS)]
    task_settings.expect_settings(settings)
    if not isinstance(callbacks, Sequence) or not all(map(callable, callbacks)):
        got = "one function" if callable(callbacks) else ascii(callbacks)[:80]
        raise ConfigError("callbacks", "a sequence of functions", got, "Write callbacks=[function].")
    folder, start_from = as_path(out, "out"), None if start is None else as_path(start, "from")
    with listening(callbacks), use_verbosity(Verbosity("quiet" if quiet else "normal")):
        tables = task_settings.in_tables(settings)
        outcome = training.train(recipe_of(task), tables, folder, start=start_from, device=device, processes=processes)
    return Run(folder, outcome)
