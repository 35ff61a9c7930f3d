"""What the steps of a loop leave to the one backward pass that comes after all of theirs.

A pass may go through some of the steps only, and one that asks for other gradients does not come to the end: what its
steps have left lies there still. So each step marks its place in the gradient of a vector, one number for each step,
and only what was marked in this pass counts.
"""

from typing import final

from torch import Tensor


@final
class Marks:
    """Of one loop.

    Args:
        steps: how many there may be.

    Example:
        >>> import torch
        >>> marks, ones = Marks(3), torch.ones(1, 2)
        >>> mark = marks.leave(2, ones, 5 * ones)
        >>> mark, marks.take(mark)
        (tensor([0., 0., 1.]), ([tensor([[1., 1.]])], [tensor([[5., 5.]])]))
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._left: dict[int, tuple[Tensor, Tensor]] = {}

    def leave(self, step: int, given: Tensor, grad: Tensor) -> Tensor:
        """Leave what a step was given, and the gradient of its result.

        Returns:
            Its mark: the gradient of the vector.
        """
        self._left[step] = given, grad
        mark = grad.new_zeros(self._steps)
        mark[step] = 1
        return mark

    def take(self, marks: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """What the marked steps have left, in their order: what they were given, and the gradients."""
        left = [self._left.pop(step) for step in marks.nonzero()[:, 0].tolist()]
        return [given for given, _ in left], [grad for _, grad in left]
