"""The tensors that a function closes over and that learn: finding them, and replacing them."""

from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from qkv.engine.position_bias import learns_more


@final
class _Captures(TorchFunctionMode):
    """Records the tensors that need a gradient and were not computed within this mode."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: dict[int, Tensor] = {}
        self._computed: dict[int, Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record the arguments, and remember the result, which keeps its identity taken."""
        for x in _tensors((*args, *(kwargs or {}).values())):
            computed = id(x) in self._computed or torch._C._functorch.is_functorch_wrapped_tensor(x)
            if x.requires_grad and not computed:
                self.tensors[id(x)] = x
        result = func(*args, **(kwargs or {}))
        for x in _tensors((result,)):
            if id(x) not in self.tensors:
                self._computed[id(x)] = x
        return result


@final
class Replaced(TorchFunctionMode):
    """Lets PyTorch's functions read other tensors in place of some that a function closes over.

    Args:
        captured: the tensors that are replaced.
        by: what is read instead of each.

    Example:
        >>> weight = torch.ones(3)
        >>> with Replaced([weight], [torch.zeros(3)]):
        ...     print((2 * weight).tolist())
        [0.0, 0.0, 0.0]
    """

    def __init__(self, captured: Sequence[Tensor], by: Sequence[Tensor]) -> None:
        super().__init__()
        self._captured = captured  # keeps their identities taken
        self._by = {id(x): other for x, other in zip(captured, by, strict=True)}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function with the replacements."""
        args, kwargs = tree_map_only(Tensor, lambda x: self._by.get(id(x), x), (args, kwargs or {}))
        return func(*args, **kwargs)


def _tensors(arguments: Sequence[Any]) -> list[Tensor]:
    nested = [x for argument in arguments for x in (argument if isinstance(argument, (list, tuple)) else (argument,))]
    return [x for x in nested if isinstance(x, Tensor)]


def captured_by(run: Callable[[], Tensor]) -> list[Tensor] | None:
    """Return the tensors that a function closes over and that need a gradient.

    Args:
        run: calls the function, on tensors that need none.

    Returns:
        The tensors; None if it computes with others that PyTorch's functions do not show.

    Example:
        >>> weight = torch.ones(3, requires_grad=True)
        >>> captured_by(lambda: (2 * weight).sum()) == [weight]
        True
    """
    with torch.enable_grad(), _Captures() as captures:
        result = run()
    captured = list(captures.tensors.values())
    return captured if not result.requires_grad or not learns_more(result, captured) else None
