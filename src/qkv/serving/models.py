"""What a server answers with: the models of its runs, by name."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from qkv.errors import CheckpointError, ConfigError, DataError, Place
from qkv.serving.request_queue import Compute
from qkv.settings import as_dict, build, options_of
from qkv.tasks.catalog import ANSWERS, TASKS
from qkv.tasks.runs import task_of
from qkv.tasks.settings import RequestSettings

MOST_INPUTS = 1_024
"""The most inputs of a request."""
MOST = {"max_tokens": 4_096, "tokens": 4_096, "beam": 64, "n_best": 64}
"""The largest values of settings that decide how long one request can occupy a model."""


class Model(NamedTuple):
    """A model of a server.

    Attributes:
        name: in the address.
        task: of the model.
        table: what a request can set.
        compute: answers inputs.
        stream: answers one input piece by piece; None if the task cannot.
    """

    name: str
    task: str
    table: type[RequestSettings]
    compute: Compute
    stream: Callable[[str, Any], Iterator[str]] | None


class ModelRequest(NamedTuple):
    """A valid request.

    Attributes:
        inputs: the texts, or the rows of numbers.
        settings: the table of the task.
        stream: whether the answer is wanted piece by piece.
    """

    inputs: Sequence[Any]
    settings: RequestSettings
    stream: bool


def open_models(runs: Sequence[Path], device: str) -> dict[str, Model]:
    """Load the models of runs.

    Args:
        runs: run folders, or `example`; the name of a folder is the name of its model.
        device: compute device.

    Returns:
        The models by name.

    Raises:
        CheckpointError: a checkpoint is invalid, or of a task that is not served.
        ConfigError: two folders have the same name.

    Example:
        >>> list(open_models([Path("example")], "cpu"))
        ['example']
    """
    models: dict[str, Model] = {}
    for run in runs:
        name = run.resolve().name
        if name in models:
            hint = "Rename a folder: it is the name of the model in the address."
            raise ConfigError("runs", "folders of different names", f"two called {name}", hint)
        task = task_of(run)
        settings: Any = TASKS.get(task)
        if settings is None or settings.requests is None or settings.answers is None:
            hint = f"Served are: {', '.join(name for name, task in TASKS.items() if task.requests is not None)}."
            raise CheckpointError(str(run), "a model of a task that is served", f"one of {task}", hint)
        device_of = {"device": device} if "device" in options_of(settings.answers) else {}
        answers = ANSWERS[task]()([run], build(settings.answers, device_of))
        assert answers.requested is not None
        models[name] = Model(name, task, settings.requests, answers.requested, answers.streamed)
    return models


def read_request(body: object, model: Model) -> ModelRequest:
    """Check the JSON of a request: `{"inputs": ["a text"], "stream": false}` and settings by name.

    Raises:
        DataError: an input is not a text, or where the model reads numbers not a row of them.
        ConfigError: a setting is unknown or out of range.

    Example:
        >>> (example,) = open_models([Path("example")], "cpu").values()
        >>> read_request({"inputs": ["Guten Tag ."], "beam": 4}, example).settings.beam
        4
    """
    if not isinstance(body, Mapping):
        raise ConfigError("request", "a JSON object", type(body).__name__, 'Send {"inputs": ["a text"]}.')
    rest = dict(body)
    inputs, stream = rest.pop("inputs", None), rest.pop("stream", False)
    if not isinstance(inputs, list) or not 1 <= len(inputs) <= MOST_INPUTS:
        got = f"{len(inputs):,}" if isinstance(inputs, list) else "none" if inputs is None else type(inputs).__name__
        raise ConfigError("inputs", f"a list of 1 to {MOST_INPUTS:,} texts", got, "Split it into several requests.")
    for number, one in enumerate(inputs, start=1):
        _expect_input(one, Place("inputs", number), model)
    if not isinstance(stream, bool) or (stream and (model.stream is None or len(inputs) > 1)):
        hint = "Tasks that write text stream the answer to a single input."
        raise ConfigError("stream", "true for one input of a task that streams", f"{stream!r:.40}", hint)
    settings = build(model.table, rest)
    for name, item in as_dict(settings).items():
        if isinstance(item, int) and item > MOST.get(name, item):
            raise ConfigError(name, f"at most {MOST[name]:,} in a request", f"{item:,}", "Send a smaller one.")
    return ModelRequest(inputs, settings, stream)


def _expect_input(one: object, place: Place, model: Model) -> None:
    if model.table.rows:
        cells = one if isinstance(one, list) else [None]
        if not all(isinstance(cell, int | float | str) and not isinstance(cell, bool) for cell in cells):
            expected = "a row of numbers and names of categories"
            raise DataError(place, expected, f"{one!r:.60}", "Send a list such as [1.5, 20].")
    elif not isinstance(one, str):
        raise DataError(place, "a text", type(one).__name__, "Send a JSON string.")
    elif "\n" in one and model.stream is None:
        raise DataError(place, "a line", "a text with a line feed", "Send each line as an input.")
