"""Helpers for hooks: a value for each thread, and hooks that skip the passes that backward repeats."""

import threading
from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, Generic, TypeVar, final

import torch

State = TypeVar("State")
Result = TypeVar("Result")


@final
class PerThread(Generic[State]):
    """A value for each thread, made when the thread first asks for it.

    Several threads may run a module at once: what its hooks store must belong to the running thread.

    Args:
        make: makes the value of a thread.

    Example:
        >>> counts = PerThread(list)
        >>> counts.get().append(1)
        >>> counts.get()
        [1]
    """

    def __init__(self, make: Callable[[], State]) -> None:
        self._make = make
        self._local = threading.local()

    def get(self) -> State:
        """Return the value of the running thread."""
        try:
            state: State = self._local.state
        except AttributeError:
            state = self._local.state = self._make()
        return state


def first_time(hook: Callable[..., Result]) -> Callable[..., Result | None]:
    """Return a hook that ignores forward passes that are recomputed during backward (gradient checkpointing).

    Their attention was recorded when they ran first.

    PyTorch registers and removes a hook in two steps. A thread that runs the module between them calls the hook without
    keywords: it then does nothing.

    Example:
        >>> from torch.utils.checkpoint import checkpoint
        >>> layer, calls = torch.nn.Linear(2, 2), []
        >>> handle = layer.register_forward_hook(first_time(lambda module, inputs, output: calls.append(inputs)))
        >>> checkpoint(layer, torch.ones(1, 2, requires_grad=True), use_reentrant=False).sum().backward()
        >>> len(calls)
        1
    """

    count = len(signature(hook).parameters)

    @wraps(hook)
    def run(*arguments: Any) -> Result | None:
        # As torch.utils.module_tracker tells: inside backward, its graph has a number.
        return hook(*arguments) if torch._C._current_graph_task_id() == -1 and len(arguments) == count else None

    return run
