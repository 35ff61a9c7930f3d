"""Telling forward passes from those that backward repeats to save memory, as gradient checkpointing does."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch


def first_time(hook: Callable[..., None]) -> Callable[..., None]:
    """Return a hook that sees no pass that backward repeats: its attention was recorded when it ran first.

    Example:
        >>> from torch.utils.checkpoint import checkpoint
        >>> layer, seen = torch.nn.Linear(2, 2), []
        >>> handle = layer.register_forward_hook(first_time(lambda module, given, output: seen.append(given)))
        >>> checkpoint(layer, torch.ones(1, 2, requires_grad=True), use_reentrant=False).sum().backward()
        >>> len(seen)
        1
    """

    @wraps(hook)
    def run(*given: Any, **options: Any) -> None:
        # As torch.utils.module_tracker tells: inside backward, its graph has a number.
        if torch._C._current_graph_task_id() == -1:
            hook(*given, **options)

    return run
