"""Running a method of a module within the module's hooks, as `module(...)` runs `forward`.

Decoding calls other methods than `forward`: one step of a block, attention over cached keys. A hook is for what
the module computes, so it sees these calls too. Nothing about the module changes meanwhile: other threads may call it.
"""

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar, final

import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules
from torch.utils.hooks import BackwardHook

from qkv.values.abandoning import expect_wanted
from qkv.values.plain_modules import has_hooks

Result = TypeVar("Result")
State = TypeVar("State")
Rest = TypeVar("Rest")
_Hook = Callable[..., Any]


def through_hooks(module: nn.Module, method: Callable[..., Result], *args: Any, **options: Any) -> Result:
    """Run a method that a model calls in place of a module's `forward`, with the hooks of the module around it.

    Args:
        module: the module.
        method: what runs, such as one step of a decoding.
        args, options: its arguments, which pre-hooks see.

    Example:
        >>> layer = nn.Linear(2, 3)
        >>> handle = layer.register_forward_hook(lambda module, inputs, output: -output)
        >>> through_hooks(layer, lambda x: 2 * x, 5)
        -10
    """
    if not has_hooks(module):
        return method(*args, **options)
    call = _HookedCall(module, method, args, options)
    if torch.compiler.is_compiling():  # as PyTorch does, which traces no hooks of a call that failed
        call.run()
    else:
        try:
            call.run()
        except Exception:
            call.run_always_called()
            raise
    result: Result = call.result
    return result


def step_through_hooks(
    module: nn.Module,
    method: Callable[[Tensor, State], tuple[Tensor, Rest]],
    tokens: Tensor,
    state: State,
) -> tuple[Tensor, Rest]:
    """Run one step of a model's decoding, with the hooks of the model around it.

    They see what they see of `forward`: the tokens as inputs, and the scores alone as output. Those that take keywords
    also get the state.

    Args:
        module: the model.
        method: takes tokens and state; returns scores and what else the step gives, such as the next state.
        tokens: ids (B, T).
        state: the state before them.

    Example:
        >>> layer = nn.Linear(2, 3)
        >>> handle = layer.register_forward_hook(lambda module, inputs, output: -output)
        >>> step_through_hooks(layer, lambda tokens, state: (2.0 * tokens, state + 1), torch.tensor([[3]]), 5)
        (tensor([[-6.]]), 6)
    """
    if not torch.compiler.is_compiling():
        expect_wanted()
    if not has_hooks(module):
        return method(tokens, state)
    rest: list[Rest] = []

    def scores_of(tokens: Tensor, *, state: State) -> Tensor:
        scores, after = method(tokens, state)
        rest.append(after)
        return scores

    return through_hooks(module, scores_of, tokens, state=state), rest[0]


def is_step(module: nn.Module, options: dict[str, Any]) -> bool:
    """Return whether a hook sees a step of a decoding, not a call of the model; `options` are the call's keywords."""
    return "state" in options and hasattr(type(module), "step")


@final
class _HookedCall:
    """One call of a method within hooks, in the order of `nn.Module.__call__`."""

    def __init__(self, module: nn.Module, method: _Hook, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        self.module, self.method, self.args, self.options = module, method, args, options
        self.result: Any = None
        self.started: list[_Hook] = []

    def run(self) -> None:
        """Run pre-hooks, the method and hooks, and let backward run backward hooks."""
        module = self.module
        for hook, with_options in _before(module):
            self._run_before(hook, with_options)
        full, partial = module._get_backward_hooks()
        before = module._get_backward_pre_hooks()
        backward = BackwardHook(module, full, before) if full or before else None
        if backward is not None:
            self.args = backward.setup_input_hook(self.args)
        self.result = self.method(*self.args, **self.options)
        for hook, with_options, _ in _after(module):
            self.started.append(hook)
            self._run_after(hook, with_options)
        if backward is not None:
            self.result = backward.setup_output_hook(self.result)
        graph = _first_tensor(self.result).grad_fn if partial else None
        if graph is not None:
            for hook in partial:
                graph.register_hook(functools.partial(hook, module))

    def run_always_called(self) -> None:
        """Run the hooks with `always_call=True` of a call that failed, but those that started."""
        for hook, with_options, always in _after(self.module):
            if not always or hook in self.started:
                continue
            try:
                self._run_after(hook, with_options)
            except Exception as error:
                message = f"a forward hook with always_call=True raised an error after another one: {error}"
                warnings.warn(message, stacklevel=4)

    def _run_before(self, hook: _Hook, with_options: bool) -> None:
        if not with_options:
            changed = hook(self.module, self.args)
            if changed is not None:
                self.args = changed if isinstance(changed, tuple) else (changed,)
            return
        changed = hook(self.module, self.args, self.options)
        if changed is None:
            return
        if not isinstance(changed, tuple) or len(changed) != 2:
            message = f"forward pre-hook must return None or a tuple of (new_args, new_kwargs), but got {changed}."
            raise RuntimeError(message)
        self.args, self.options = changed

    def _run_after(self, hook: _Hook, with_options: bool) -> None:
        options = (self.options,) if with_options else ()
        changed = hook(self.module, self.args, *options, self.result)
        if changed is not None:
            self.result = changed


def _before(module: nn.Module) -> list[tuple[_Hook, bool]]:
    """Return each pre-hook, global ones first, and whether it takes keyword arguments."""
    with_options = module._forward_pre_hooks_with_kwargs
    module_hooks = [(hook, number in with_options) for number, hook in [*module._forward_pre_hooks.items()]]
    return [*((hook, False) for hook in [*modules._global_forward_pre_hooks.values()]), *module_hooks]


def _after(module: nn.Module) -> list[tuple[_Hook, bool, bool]]:
    """Return each hook, global ones first, whether it takes keyword arguments, and whether it always runs."""
    tables = (
        (modules._global_forward_hooks, modules._global_forward_hooks_with_kwargs),
        (module._forward_hooks, module._forward_hooks_with_kwargs),
    )
    always = {*modules._global_forward_hooks_always_called, *module._forward_hooks_always_called}
    # Ids are unique over all tables. Lists are copies, as other threads may register and remove hooks meanwhile.
    return [
        (hook, number in with_options, number in always)
        for hooks, with_options in tables
        for number, hook in [*hooks.items()]
    ]


def _first_tensor(result: Any) -> Tensor:
    while not isinstance(result, Tensor):
        result = next(iter(result.values())) if isinstance(result, dict) else result[0]
    return result
