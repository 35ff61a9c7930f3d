"""What a run folder holds, whatever its task: which task, which tokenizer, which weights."""

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
    """What was trained.

    Attributes:
        folder: the checkpoint.
        contents: its weights, configuration and figures.
        tokenizer: text to ids.
        task: its name.
    """

    folder: Path
    contents: Contents
    tokenizer: Tokenizer
    task: str


def open_run(run: str | Path) -> Trained:
    """Read the best checkpoint of a run, or one checkpoint.

    Args:
        run: the folder that training wrote, or one checkpoint in it.

    Returns:
        What it holds.

    Raises:
        CheckpointError: the checkpoint is missing, incomplete or altered, or names no task.
    """
    folder = locate(Path(run))
    contents = load(folder, trainer=False)
    task = contents.config.get("task")
    if not isinstance(task, str) or contents.tokenizer is None:
        hint = "Give the folder that `qkv train` wrote."
        raise CheckpointError(
            error_message(str(folder), "a checkpoint with its task and tokenizer", "one without", hint)
        )
    return Trained(folder, contents, Tokenizer.from_json(contents.tokenizer), task)


def expect_task(trained: Trained, task: str, what: str) -> None:
    """Refuse a checkpoint of another task.

    Args:
        trained: what was read.
        task: the task that is wanted.
        what: such a model in words.

    Raises:
        CheckpointError: it is of another task.
    """
    if trained.task != task:
        hint = f"Use `qkv {trained.task}`, the command of its task."
        raise CheckpointError(error_message(str(trained.folder), what, f"one trained to {trained.task}", hint))


def rebuild(make: Callable[[], M], trained: Trained, weights: Mapping[str, Tensor] | None = None) -> M:
    """Make the model that a checkpoint names, and give it its weights.

    Sizes are believed last: no memory is taken before they are those of the stored weights. PyTorch refuses sizes of
    more than 64 bits in several ways, by a `TypeError` among others.

    Args:
        make: makes the model of the checkpoint's configuration.
        trained: the checkpoint.
        weights: others than its own, as their mean over several checkpoints.

    Returns:
        The model.

    Raises:
        CheckpointError: they are not the weights of this model, or there is no such model.
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
        hint = "It was written by another version: train again, or install that version."
        got = str(error).partition("\n")[0][:200]
        raise CheckpointError(error_message(str(trained.folder), "weights of the model it names", got, hint)) from error
    return model


class _Undrawn(TorchFunctionMode):
    """Leaves first weights as they are, for stored ones take their place.

    On the meta device PyTorch would import its compiler to draw none, which takes longer than all else in loading.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        return (*args, *named.values())[0] if func in _DRAWN else func(*args, **named)


def _expect_few_layers(table: object, tensors: int) -> None:
    """Every layer has weights: a configuration with more of them than there are tensors is not worth a try."""
    for name, size in table.items() if isinstance(table, Mapping) else ():
        if str(name).endswith("layers") and isinstance(size, int) and size > tensors:
            raise ValueError(f"{size:,} {name} in config.json, but {tensors:,} tensors")


def _expect_sizes(wanted: Mapping[str, Tensor], stored: Mapping[str, Tensor]) -> None:
    for name in sorted(wanted.keys() | stored.keys()):
        sizes = [tuple(tensors[name].shape) if name in tensors else None for tensors in (wanted, stored)]
        if sizes[0] != sizes[1]:
            words = ["none" if size is None else f"one of sizes {size}" for size in sizes]
            raise ValueError(f"{words[1]} named {name} where config.json has {words[0]}")


def learnt_tokenizer(out: Path) -> Tokenizer | None:
    """The tokenizer of a run that is to be gone on with; None where there is no run yet."""
    if not out.is_dir() or (found := latest_complete(out, lambda text: None)) is None:
        return None
    tokenizer = load(found, trainer=False).tokenizer
    return None if tokenizer is None else Tokenizer.from_json(tokenizer)
