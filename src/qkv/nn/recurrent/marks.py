"""Tensors that the backward passes of a loop's steps leave to the backward pass of what the loop repeats.

A backward pass may run through some of the steps only. One that asks for other gradients never reaches the end, and
what its steps left is still there. So the backward pass of each step marks its place in the gradient of a vector with
one element per step, and only the steps that are marked in the current pass count.
"""

from typing import final

from torch import Tensor


@final
class Marks:
    """What the steps of one loop have left.

    Args:
        steps: the largest number of steps.

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

    def leave(self, step: int, inputs: Tensor, grad: Tensor) -> Tensor:
        """Leave the input of a step, and the gradient of its result.

        Args:
            step: its number.
            inputs: its input.
            grad: the gradient of its result.

        Returns:
            The mark of the step: its contribution to the gradient of the vector.
        """
        self._left[step] = inputs, grad
        mark = grad.new_zeros(self._steps)
        mark[step] = 1
        return mark

    def take(self, marks: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return and forget what the marked steps left, in order: their inputs, and the gradients of their results."""
        left = [self._left.pop(step) for step in marks.nonzero()[:, 0].tolist()]
        return [inputs for inputs, _ in left], [grad for _, grad in left]
