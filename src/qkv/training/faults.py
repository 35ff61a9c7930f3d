"""Errors that stop a training, with the examples that caused them."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from qkv.data.batches import device_of
from qkv.errors import MEMORY_ERRORS, TrainingError, out_of_memory_text, setting
from qkv.training.protocols import Task

_TRIED = 512
"""Examples of an update that are computed one by one to find the cause."""


def not_finite(
    task: Task[Any], model: nn.Module, batches: Sequence[Sequence[int]], step: int, what: str, got: float
) -> TrainingError:
    """Build the error for a loss or gradient that is not finite, with the lines of the examples that cause it.

    Args:
        task: provides batches, objective and lines.
        model: the model.
        batches: the examples of this update.
        step: number of the update.
        what: "loss" or "norm of the gradient".
        got: its value.

    Returns:
        The error to raise.
    """
    examples = [index for batch in batches for index in batch]
    causes = [index for index in examples[:_TRIED] if not _loss_is_finite(task, model, index)]
    isolated = 0 < len(causes) < len(examples)
    lines = show_lines(task.lines(causes if isolated else examples))
    cause = f"because of {lines}" if isolated else f"in a batch of {lines}"
    hint = (
        "The last good checkpoint is intact. Check these lines; or, with a new " + setting("out") + ", lower "
        "learning_rate, lower clip, raise warmup, or use precision float32."
    )
    return TrainingError(f"{what} at step {step:,}", "a finite number", f"{got} {cause}", hint)


def expect_finite_weights(model: nn.Module, step: int) -> None:
    """Check that all weights are finite, so that bad ones never replace a good checkpoint.

    Args:
        model: the model to check.
        step: number of completed updates.

    Raises:
        TrainingError: some are not.
    """
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            lower = "The last good checkpoint is intact. Lower learning_rate, or raise warmup, with a new "
            hint = lower + setting("out") + "."
            raise TrainingError(f"{name} after step {step:,}", "finite weights", "NaN or Inf", hint)


def show_lines(lines: Sequence[int]) -> str:
    """Format line numbers compactly.

    Args:
        lines: from 1, in any order.

    Returns:
        The text.

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
    listed = ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ranges[:40])
    suffix = f" and more, {len(ordered):,} in all" if len(ranges) > 40 else ""
    return f"line{'s' if len(ordered) > 1 else ''} {listed}{suffix}"


@contextmanager
def suggest_smaller_batches(step: int, tokens: int) -> Iterator[None]:
    """Turn an out-of-memory error into one that says which setting reduces the need.

    Args:
        step: number of the update.
        tokens: size of a batch.

    Raises:
        TrainingError: the update does not fit in memory.
    """
    try:
        yield
    except MEMORY_ERRORS as error:
        got = out_of_memory_text(error)
        if got is None:
            raise
        lower = "Lower " + setting("batch_tokens") + f" (now {tokens:,}) and raise " + setting("accumulate")
        hint = lower + " by the same factor: the result is about the same."
        raise TrainingError(f"memory at step {step:,}", "enough memory for a batch", got, hint) from error


@torch.no_grad()
def _loss_is_finite(task: Task[Any], model: nn.Module, index: int) -> bool:
    loss, _ = task.objective(model, task.collate([index], device_of(model)))
    return math.isfinite(float(loss))
