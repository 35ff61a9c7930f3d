"""bfloat16 if it is clearly faster on this machine: measured, not guessed."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import cycle, islice
from statistics import median
from typing import Any, Literal

import torch
from torch import nn

from qkv.training.protocols import Task
from qkv.training.seeds import undisturbed

ComputePrecision = Literal["float32", "bfloat16"]
CLEARLY = 0.85
"""The ratio of times below which bfloat16 is chosen."""
_ROUNDS = 3


def computing(precision: ComputePrecision, device: torch.device) -> AbstractContextManager[Any]:
    """Run the code inside in a precision; weights keep theirs.

    Args:
        precision: "bfloat16" enables PyTorch's autocast.
        device: the model's device.

    Returns:
        A context.

    Example:
        >>> with computing("bfloat16", torch.device("cpu")):
        ...     (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
        torch.bfloat16
    """
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


def choose(
    task: Task[Any], model: nn.Module, batches: Sequence[Sequence[int]], say: Callable[[str], None]
) -> ComputePrecision:
    """Time forward and backward in both precisions, and choose bfloat16 if it is clearly faster.

    Weights, buffers and random generators are restored afterwards.

    Args:
        task: provides batch and objective.
        model: the task's model.
        batches: a few batches; the first is a warm-up.
        say: called with a message about the measurement and the choice.

    Returns:
        The precision to train in.
    """
    device = next(model.parameters()).device
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    seconds: dict[ComputePrecision, list[float]] = {"float32": [], "bfloat16": []}
    with undisturbed():
        for index, batch in enumerate([batches[0], *islice(cycle(batches), _ROUNDS)]):
            for precision, measured in seconds.items():
                duration = _measure(task, model, batch, precision, device)
                if index:
                    measured.append(duration)
    model.zero_grad(set_to_none=True)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
    ratio = median(seconds["bfloat16"]) / median(seconds["float32"])
    chosen: ComputePrecision = "bfloat16" if ratio < CLEARLY else "float32"
    say(f"Precision: bfloat16 takes {ratio:.2f} times as long as float32 here; training in {chosen}.")
    return chosen


def _measure(
    task: Task[Any], model: nn.Module, indices: Sequence[int], precision: ComputePrecision, device: torch.device
) -> float:
    model.zero_grad(set_to_none=True)
    batch = task.collate(indices, device)
    _synchronize(device)
    start = time.perf_counter()
    with computing(precision, device):
        loss, _ = task.objective(model, batch)
    loss.backward()
    _synchronize(device)
    return time.perf_counter() - start


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
