"""What a training that resumes restores besides its state, and what it says about what has changed."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from qkv.checkpoint.json_values import JsonValue
from qkv.checkpoint.rotation import best_step, mark_best, steps
from qkv.compiled import target
from qkv.errors import CheckpointError, harmless, on_command_line, setting
from qkv.files import FREE, room_for
from qkv.training.schedules import learning_rate
from qkv.training.state import State
from qkv.training_settings import Settings

_SAME_RATE = 1.1
"""The ratio up to which two learning rates count as the same."""


def set_weights(model: nn.Module, tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Copy the weights of a checkpoint to a model.

    Raises:
        CheckpointError: they do not fit.
        OutOfMemoryError: memory ran out.
    """
    try:
        with room_for(folder, FREE):
            model.load_state_dict(dict(tensors))
    except RuntimeError as error:
        hint = "Build the same model that was trained, or give another " + setting("out") + "."
        raise CheckpointError(str(folder), "the weights of this model", str(error), hint) from error


def arithmetic() -> str:
    """Describe what determines the last bits of results: compiled kernels, and the instruction set PyTorch uses."""
    choice = target.choose()
    kernels = choice.target.name if choice.target is not None else target.PYTHON if choice.python else target.NONE
    return f"Kernels: {kernels}, PyTorch: {torch.backends.cpu.get_cpu_capability()}"


def report_arithmetic(state: State, say: Callable[[str], None]) -> None:
    """Report changed threads and kernels, which change the last bits of results, and store the present ones."""
    threads, kernels = torch.get_num_threads(), arithmetic()
    if threads != state.threads:
        say(f"PyTorch now has {threads} threads instead of {state.threads}: the last bits of the result may differ.")
    if state.arithmetic not in ("", kernels):
        say(f"{kernels} instead of {harmless(state.arithmetic[:80])}: the last bits of the result may differ.")
    state.threads, state.arithmetic = threads, kernels


def report_schedule(settings: Settings, before: Mapping[str, JsonValue], step: int, say: Callable[[str], None]) -> None:
    """Say that another number of steps moves the learning rate of the next update, and how to keep it.

    Args:
        settings: the present ones.
        before: the configuration of the checkpoint.
        step: number of completed updates.
        say: called with the message.
    """
    stored = before.get("training")
    table = stored if isinstance(stored, Mapping) else {}
    planned_steps, length = table.get("steps"), table.get("schedule_steps")
    if not isinstance(planned_steps, int) or not 0 < step < settings.steps:
        return
    length = length if isinstance(length, int) else planned_steps
    planned = learning_rate(replace(settings, schedule_steps=length), step + 1)
    rate = learning_rate(settings, step + 1)
    if max(rate, planned) <= _SAME_RATE * min(rate, planned):
        return
    flag = on_command_line("schedule_steps", f"{length}")
    say(
        f"With {settings.steps:,} steps in place of {planned_steps:,}, the {settings.schedule} schedule moves the "
        f"learning rate from {planned:.2g} to {rate:.2g} at step {step + 1:,}. To stay at {planned:.2g}, stop, and "
        f"give {flag}."
    )


def point_to_best(run: Path, best: int) -> None:
    """Point to the best checkpoint: the process may have ended between a checkpoint and its pointer, or the newest
    checkpoint may be damaged.
    """
    try:
        pointed = best_step(run)
    except CheckpointError:
        pointed = None
    if pointed != best and best in steps(run):
        mark_best(run, best)


def stored_buffers(model: nn.Module) -> Iterator[Tensor]:
    """Yield the buffers that a checkpoint stores besides the parameters, without tables that can be recomputed."""
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set:
                yield buffer
