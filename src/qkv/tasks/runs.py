"""Trained models on disk, for any task: the checkpoint of a run or the folder of another library, and its network."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from qkv.checkpoint.contents import Contents, StoredWeights
from qkv.checkpoint.folder import load_weights_later, verify
from qkv.checkpoint.json_values import decode
from qkv.checkpoint.rotation import locate
from qkv.data.tokenizer import Tokenizer
from qkv.errors import CheckpointError, ConfigError, OutOfMemoryError, expect_name, nearest
from qkv.files import FREE, as_path, room_for
from qkv.hub.cache import cached, downloaded
from qkv.hub.folder import Folder
from qkv.hub.published import PUBLISHED, PublishedConfig, published_folder
from qkv.settings import as_dict, build
from qkv.tasks.answerers import ANSWERERS, COMMANDS
from qkv.tasks.example_run import packaged
from qkv.tasks.members import members_of
from qkv.tasks.notes import note
from qkv.values.devices import as_device

if TYPE_CHECKING:
    from qkv.hub.families.load import StackModel

OTHER_VERSION = "It was written by another version: retrain, or install that version."
"""A hint about a configuration that does not have what a model needs."""
_MISFIT = (ConfigError, RuntimeError, ValueError, TypeError, OverflowError)
M = TypeVar("M", bound=nn.Module)
S = TypeVar("S", bound="StackModel")
_INITIALIZERS = (Tensor.normal_, Tensor.uniform_, nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_)


class Trained(NamedTuple):
    """A trained checkpoint.

    Attributes:
        folder: the checkpoint's folder.
        contents: its weights, configuration and metrics.
        stored_tokenizer: text to ids; None for a model that reads numbers.
        task: name of the task.
    """

    folder: Path
    contents: Contents
    stored_tokenizer: Tokenizer | None
    task: str

    @property
    def is_published(self) -> bool:
        """Whether the model comes from another library: from its folder, or from a run that continued from it."""
        return self.model_table.get("model") == PUBLISHED

    @property
    def model_table(self) -> Mapping[str, Any]:
        """The settings of the model as config.json has them; none if it has no such table."""
        table = self.contents.config.get("model")
        return table if isinstance(table, Mapping) else {}

    @property
    def columns(self) -> Mapping[str, Any]:
        """The columns that the training was given, and how its table writes numbers; none if it was given none."""
        columns = self.contents.config.get("data")
        return columns if isinstance(columns, Mapping) else {}

    @property
    def tokenizer(self) -> Tokenizer:
        """Text to ids.

        Raises:
            CheckpointError: the model reads numbers, and has none.
        """
        if self.stored_tokenizer is None:
            files = "Copy the model's tokenizer.json, or vocab.json and the files of SentencePiece, into the folder."
            hint = files if self.is_published else "Give the run of a model that reads text."
            raise CheckpointError(str(self.folder), "a checkpoint with a tokenizer", "one without", hint)
        return self.stored_tokenizer


def load_trained(run: str | Path, say: Callable[[str], None] = note) -> Trained:
    """Read the best checkpoint of a run, one checkpoint, or the folder of a published model.

    Args:
        run: run folder, one checkpoint in it, or the folder of a model that another library wrote.
        say: called with messages about the run.

    Returns:
        Its contents.

    Raises:
        CheckpointError: the checkpoint is missing, incomplete, corrupted, or has no task.
    """
    path = cached(as_path(run, "run"))
    if (other_library := published_folder(path)) is not None:
        return open_published(other_library)
    folder = locate(path, say)
    contents = load_weights_later(folder)
    task = contents.config.get("task")
    if not isinstance(task, str):
        hint = "Give the folder that `qkv train` wrote."
        raise CheckpointError(str(folder), "a checkpoint with its task", "one without it", hint)
    return Trained(folder, contents, tokenizer_of(contents), task)


def load_model(
    run: str | Path, device: str | torch.device = "cpu", task: str | None = None, *, download: bool = False
) -> Any:
    """Load a trained model of any task; arguments and errors as for `qkv.load`."""
    if task is not None:
        expect_name("task", task, ANSWERERS, "a known task")
    runs = open_members(run, download=download)
    if task is not None:
        expect_task(runs[0][1], task)
    return answerer_of(runs, device)


def open_members(run: str | Path, *, download: bool = False) -> list[tuple[Path, Trained]]:
    """Read the checkpoint of a run, or those of an ensemble, each beside its path; errors as for `qkv.load`."""
    path = packaged(as_path(run, "run"))
    return [(path, load_trained(path)) for path in members_of(downloaded(path) if download else path)]


def answerer_of(runs: Sequence[tuple[Path, Trained]], device: str | torch.device = "cpu") -> Any:
    """Build the model of checkpoints as `open_members` returns them; errors as for `qkv.load`."""
    trained = runs[0][1]
    if trained.task not in ANSWERERS:
        got, hint = f'"{trained.task[:80]}"', nearest(trained.task[:80], ANSWERERS)
        raise CheckpointError(str(trained.folder), "a task that this version knows", got, hint)
    answerer = ANSWERERS[trained.task]()
    if len(runs) > 1:
        return answerer.ensemble([(path, answerer.of(member, device)) for path, member in runs])
    return answerer.of(trained, device)


def task_of(run: Path) -> str:
    """Return the task of a run or an ensemble; what there is to say of its checkpoint is said when it is loaded.

    Raises:
        CheckpointError: as for `load_trained`.

    Example:
        >>> task_of(Path("example"))
        'translate'
    """
    return load_trained(members_of(run)[0], say=lambda _: None).task


def digest_of(run: str | Path) -> str:
    """Return one sha256 over every byte of the best checkpoint of a run, of one checkpoint, or of a published model.

    Args:
        run: as for `load_trained`.

    Raises:
        CheckpointError: the checkpoint is missing, or altered.
    """
    path = cached(as_path(run, "run"))
    other_library = published_folder(path)
    if other_library is None:
        return verify(locate(path, note)).digest
    from qkv.hub.families.load import published_digest

    return published_digest(other_library)


def tokenizer_of(contents: Contents) -> Tokenizer | None:
    """Return the tokenizer of a checkpoint, if it has one."""
    text, table = contents.tokenizer, contents.config.get("model")
    size = _size(table) if isinstance(table, Mapping) and table.get("model") == PUBLISHED else None
    return None if text is None else Tokenizer.from_json(text, size)


def _size(table: Mapping[str, Any]) -> int:
    """Return how many tokens a published model reads; that of ours is said by its tokenizer."""
    from qkv.hub.families.load import described

    return described(build(PublishedConfig, table, "model")).config.size


def open_published(folder: Folder, labels: str | None = None) -> Trained:
    """Read the model of another library.

    Args:
        folder: its folder.
        labels: "classify" or "tag" for an encoder to train to it; None for the model's own task.

    Returns:
        The same as for a checkpoint of ours; without a tokenizer if the folder has none.

    Raises:
        CheckpointError: the folder does not hold what it should.
    """
    from qkv.hub.families.adapter import base_of
    from qkv.hub.families.load import read_encoder, read_folder
    from qkv.hub.families.tokenizer import read_tokenizer

    pretrained = read_folder(folder) if labels is None else read_encoder(folder, labels)
    settings = pretrained.checkpoint_config
    longest = pretrained.config.context
    config: dict[str, Any] = {"task": pretrained.family.task, "model": as_dict(settings), "longest": longest}
    if pretrained.config.labels:
        config["labels"] = list(pretrained.labels)
    tokenizer = read_tokenizer(base_of(folder), pretrained.family, pretrained.config.size)
    text = None if tokenizer is None else tokenizer.to_json()
    return Trained(folder.path, Contents(pretrained.tensors, config, text), tokenizer, pretrained.family.task)


def expect_task(trained: Trained, task: str) -> None:
    """Refuse a checkpoint of another task.

    Raises:
        CheckpointError: it is of another task.
    """
    if trained.task != task:
        hint = f"Use `qkv {COMMANDS.get(trained.task, trained.task)}`, the command for its task."
        trains = f"a checkpoint of `qkv train {task}`"
        expected = "the folder of an encoder, such as BERT" if task in COMMANDS else trains
        raise CheckpointError(str(trained.folder), expected, f"one trained to {trained.task}", hint)


def rebuild(
    make: Callable[[], M],
    trained: Trained,
    device: str | torch.device = "cpu",
    weights: Mapping[str, Tensor] | None = None,
) -> M:
    """Create the model of a checkpoint with its weights, on a device and in evaluation mode.

    No memory is allocated before the configured sizes match those of the stored weights. PyTorch rejects sizes of more
    than 64 bits in several ways, including a `TypeError`.

    Args:
        make: creates the model from the checkpoint's configuration.
        trained: the checkpoint.
        device: compute device.
        weights: use these weights instead of its own, such as an average of checkpoints.

    Returns:
        The model.

    Raises:
        CheckpointError: the weights do not fit the model, or the model is unknown.
        ConfigError: the device is not available.
        OutOfMemoryError: the model does not fit in memory.
    """
    compute_device = as_device(device)
    stored = trained.contents.model if weights is None else weights
    try:
        _expect_few_layers(trained.model_table, len(stored))
        try:
            with _SkipInitialization(), torch.device("meta"):
                _expect_sizes(make().state_dict(), stored)
        except OutOfMemoryError as error:  # meta tensors need no memory: the sizes are impossible
            raise _misfit(trained, error) from error
        with room_for(trained.folder, FREE), _SkipInitialization():
            model = make()
    except CheckpointError:
        raise  # its message is complete
    except _MISFIT as error:
        raise _misfit(trained, error) from error
    tensors = stored.read() if isinstance(stored, StoredWeights) else dict(stored)
    try:
        with room_for(trained.folder, FREE):
            model.load_state_dict(tensors)
    except _MISFIT as error:
        raise _misfit(trained, error) from error
    return model.to(compute_device).eval()


def rebuild_reader(trained: Trained, kind: type[S], device: str | torch.device = "cpu") -> S:
    """Build the encoder of a published model and load its weights.

    Args:
        trained: as `open_published` reads it.
        kind: the class that it must have.

    Raises:
        CheckpointError: it has another class, or the weights do not fit.
    """
    from qkv.hub.families.load import build_as

    published: PublishedConfig = build(PublishedConfig, trained.model_table, "model")
    return rebuild(lambda: build_as(published, kind, "a reader"), trained, device)


def _misfit(trained: Trained, error: Exception) -> CheckpointError:
    hint = "Copy the folder again from its source." if trained.is_published else OTHER_VERSION
    got = str(error).partition("\n")[0][:200]
    return CheckpointError(str(trained.folder), "weights of the model in config.json", got, hint)


class _SkipInitialization(TorchFunctionMode):
    """Skip weight initialization, because stored weights replace the initial ones.

    On the meta device, PyTorch's initializers would import its compiler, which takes longer than everything else in
    loading.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        return (*args, *named.values())[0] if func in _INITIALIZERS else func(*args, **named)


def _expect_few_layers(table: object, tensors: int) -> None:
    """Refuse a configuration with more layers than stored tensors, because every layer has weights."""
    for name, size in table.items() if isinstance(table, Mapping) else ():
        if name == "settings" and isinstance(size, str):
            _expect_few_layers(decode(size.encode(), "model.settings"), tensors)
        counts = str(name).endswith(("layers", "n_layer")) and name != "max_window_layers"
        if counts and isinstance(size, int) and size > tensors:
            raise ValueError(f"{size:,} {name} in config.json, but {tensors:,} tensors")


def _expect_sizes(expected: Mapping[str, Tensor], stored: Mapping[str, Tensor]) -> None:
    ours, theirs = _shapes(expected), _shapes(stored)
    for name in sorted(ours.keys() | theirs.keys()):
        sizes = ours.get(name), theirs.get(name)
        if sizes[0] != sizes[1]:
            words = ["none" if size is None else f"one of sizes {size}" for size in sizes]
            raise ValueError(f"{words[1]} named {name} where config.json has {words[0]}")


def _shapes(tensors: Mapping[str, Tensor]) -> Mapping[str, tuple[int, ...]]:
    return (
        tensors.shapes if isinstance(tensors, StoredWeights) else {name: tuple(x.shape) for name, x in tensors.items()}
    )
