"""What stops a training, and which examples it was about."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from qkv.errors import TrainingError, error_message, out_of_memory_text
from qkv.train.protocols import Task

_TRIED = 512


def not_finite(task: Task[Any], batches: Sequence[Sequence[int]], step: int, what: str, got: float) -> TrainingError:
    """Say at which step a number went wrong, and on which lines the examples stand that make it so.

    Args:
        task: gives batches, objective and lines.
        batches: the examples of this update.
        step: its number.
        what: "loss" or "norm of the gradient".
        got: its value.

    Returns:
        The error, to be raised.
    """
    places = [place for batch in batches for place in batch]
    guilty = [place for place in places[:_TRIED] if not _loss_is_finite(task, place)]
    alone = 0 < len(guilty) < len(places)
    lines = show_lines(task.lines(guilty if alone else places))
    which = f"because of {lines}" if alone else f"in a batch of {lines}"
    hint = (
        "The last good checkpoint is kept. Look at these lines; or lower learning_rate, lower clip, raise warmup, "
        "or use precision float32, in a new --out."
    )
    return TrainingError(error_message(f"{what} at step {step:,}", "a finite number", f"{got} {which}", hint))


def weights_not_finite(model: nn.Module, step: int) -> TrainingError | None:
    """Look for weights that are no numbers any more, so that they never replace a good checkpoint.

    Args:
        model: to look at.
        step: number of updates done.

    Returns:
        The error, to be raised, or None where all is well.
    """
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            hint = "The last good checkpoint is kept. Lower learning_rate, or raise warmup, in a new --out."
            got = "NaN or Inf"
            return TrainingError(error_message(f"{name} after step {step:,}", "finite weights", got, hint))
    return None


def show_lines(lines: Sequence[int]) -> str:
    """Write line numbers briefly.

    Args:
        lines: from 1 on, in any order.

    Returns:
        Text.

    Example:
        >>> show_lines([17]), show_lines([9, 4, 5, 6])
        ('line 17', 'lines 4-6, 9')
    """
    ordered = sorted(set(lines))
    ranges: list[list[int]] = []
    for line in ordered:
        if ranges and line == ranges[-1][1] + 1:
            ranges[-1][1] = line
        else:
            ranges.append([line, line])
    shown = ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ranges[:40])
    rest = f" and more, {len(ordered):,} in all" if len(ranges) > 40 else ""
    return f"line{'s' if len(ordered) > 1 else ''} {shown}{rest}"


@contextmanager
def room(step: int, tokens: int) -> Iterator[None]:
    """Turn an exhausted memory into an error that says which setting lowers the need.

    Args:
        step: number of the update.
        tokens: size of a batch.

    Raises:
        TrainingError: the machine has no room for the update.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        got = out_of_memory_text(error)
        if got is None:
            raise
        hint = f"Lower tokens (now {tokens:,}) and raise accumulate as much: the result is about the same."
        raise TrainingError(error_message(f"memory at step {step:,}", "room for a batch", got, hint)) from error


@torch.no_grad()
def _loss_is_finite(task: Task[Any], place: int) -> bool:
    loss, _ = task.objective(task.collate([place]))
    return math.isfinite(float(loss))
