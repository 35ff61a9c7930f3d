"""Telling forward passes from those that backward repeats to save memory, as gradient checkpointing does."""

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")


def first_time(hook: Callable[..., Result]) -> Callable[..., Result | None]:
    """Return a hook that sees no pass that backward repeats: its attention was recorded when it ran first.

    PyTorch registers and removes a hook in two steps. A thread that runs the module between them calls the hook without
    keywords: it then does nothing.

    Example:
        >>> from torch.utils.checkpoint import checkpoint
        >>> layer, seen = torch.nn.Linear(2, 2), []
        >>> handle = layer.register_forward_hook(first_time(lambda module, given, output: seen.append(given)))
        >>> checkpoint(layer, torch.ones(1, 2, requires_grad=True), use_reentrant=False).sum().backward()
        >>> len(seen)
        1
    """

    count = len(signature(hook).parameters)

    @wraps(hook)
    def run(*arguments: Any) -> Result | None:
        # As torch.utils.module_tracker tells: inside backward, its graph has a number.
        return hook(*arguments) if torch._C._current_graph_task_id() == -1 and len(arguments) == count else None

    return run
