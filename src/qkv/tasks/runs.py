"""The contents of a run folder, for any task: task, tokenizer, weights."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from qkv.checkpoint.contents import Contents
from qkv.checkpoint.folder import load
from qkv.checkpoint.rotation import latest_complete, locate
from qkv.data.tokenizer import Tokenizer
from qkv.errors import CheckpointError, ConfigError, error_message

M = TypeVar("M", bound=nn.Module)
_DRAWN = (Tensor.normal_, Tensor.uniform_, nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_)


class Trained(NamedTuple):
    """A trained checkpoint.

    Attributes:
        folder: the checkpoint's folder.
        contents: its weights, configuration and metrics.
        text: text to ids; None for a model that reads numbers.
        task: name of the task.
    """

    folder: Path
    contents: Contents
    text: Tokenizer | None
    task: str

    @property
    def tokenizer(self) -> Tokenizer:
        """Text to ids.

        Raises:
            CheckpointError: the model reads numbers, and has none.
        """
        if self.text is None:
            hint = "Give the run of a model that reads text."
            raise CheckpointError(error_message(str(self.folder), "a checkpoint with a tokenizer", "one without", hint))
        return self.text


def open_run(run: str | Path) -> Trained:
    """Read the best checkpoint of a run, or one checkpoint.

    Args:
        run: run folder, or one checkpoint in it.

    Returns:
        Its contents.

    Raises:
        CheckpointError: the checkpoint is missing, incomplete, corrupted, or has no task.
    """
    folder = locate(Path(run))
    contents = load(folder, trainer=False)
    task = contents.config.get("task")
    if not isinstance(task, str):
        hint = "Give the folder that `qkv train` wrote."
        raise CheckpointError(error_message(str(folder), "a checkpoint with its task", "one without it", hint))
    text = None if contents.tokenizer is None else Tokenizer.from_json(contents.tokenizer)
    return Trained(folder, contents, text, task)


def expect_task(trained: Trained, task: str, what: str) -> None:
    """Refuse a checkpoint of another task.

    Args:
        trained: the checkpoint.
        task: the expected task.
        what: a description of such a model.

    Raises:
        CheckpointError: it is of another task.
    """
    if trained.task != task:
        hint = f"Use `qkv {trained.task}`, the command for its task."
        raise CheckpointError(error_message(str(trained.folder), what, f"one trained to {trained.task}", hint))


def rebuild(make: Callable[[], M], trained: Trained, weights: Mapping[str, Tensor] | None = None) -> M:
    """Create the model of a checkpoint, and load its weights.

    No memory is allocated before the configured sizes match those of the stored weights. PyTorch rejects sizes of more
    than 64 bits in several ways, including a `TypeError`.

    Args:
        make: creates the model from the checkpoint's configuration.
        trained: the checkpoint.
        weights: use these weights instead of its own, such as an average of checkpoints.

    Returns:
        The model.

    Raises:
        CheckpointError: the weights do not fit the model, or the model is unknown.
    """
    stored = dict(trained.contents.model if weights is None else weights)
    try:
        _expect_few_layers(trained.contents.config.get("model"), len(stored))
        with _Undrawn():
            with torch.device("meta"):
                _expect_sizes(make().state_dict(), stored)
            model = make()
        model.load_state_dict(stored)
    except (ConfigError, RuntimeError, ValueError, TypeError, OverflowError) as error:
        hint = "It was written by another version: retrain, or install that version."
        got = str(error).partition("\n")[0][:200]
        raise CheckpointError(
            error_message(str(trained.folder), "weights of the model in config.json", got, hint)
        ) from error
    return model


class _Undrawn(TorchFunctionMode):
    """Skip weight initialization, because stored weights replace the initial ones.

    On the meta device, PyTorch's initializers would import its compiler, which takes longer than everything else in
    loading.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        return (*args, *named.values())[0] if func in _DRAWN else func(*args, **named)


def _expect_few_layers(table: object, tensors: int) -> None:
    """Every layer has weights, so a configuration with more layers than stored tensors is refused."""
    for name, size in table.items() if isinstance(table, Mapping) else ():
        if str(name).endswith("layers") and isinstance(size, int) and size > tensors:
            raise ValueError(f"{size:,} {name} in config.json, but {tensors:,} tensors")


def _expect_sizes(wanted: Mapping[str, Tensor], stored: Mapping[str, Tensor]) -> None:
    for name in sorted(wanted.keys() | stored.keys()):
        sizes = [tuple(tensors[name].shape) if name in tensors else None for tensors in (wanted, stored)]
        if sizes[0] != sizes[1]:
            words = ["none" if size is None else f"one of sizes {size}" for size in sizes]
            raise ValueError(f"{words[1]} named {name} where config.json has {words[0]}")


def learned_tokenizer(out: Path) -> Tokenizer | None:
    """Return the tokenizer of a run to resume; None if there is no run yet."""
    if not out.is_dir() or (found := latest_complete(out, lambda text: None)) is None:
        return None
    tokenizer = load(found, trainer=False).tokenizer
    return None if tokenizer is None else Tokenizer.from_json(tokenizer)
