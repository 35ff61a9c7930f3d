"""An alignment: the attention weights of each target token on the source tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.errors import DataError, DtypeError, ShapeError
from qkv.notebooks import picture, table


@dataclass(frozen=True, eq=False, repr=False)
class Alignment:
    """The weights between two token sequences, checked once so that drawing code need not.

    The weights are copied (to the CPU, in float64): later changes of the tensor have no effect. Any finite weights are
    allowed, including negative ones. Either sequence can be empty.

    Args:
        source: the S tokens that were attended to.
        target: the T tokens that attended.
        weights: the weights, (T, S); row t belongs to target token t.
        sides: what the two sequences are called where they are drawn.

    Raises:
        DtypeError: tokens are not strings, or weights are not a floating-point tensor.
        ShapeError: weights are not (T, S).
        DataError: a weight is NaN or infinite; the message gives the two tokens.

    Example:
        >>> Alignment(("ein", "Hund"), ("a", "dog"), torch.tensor([[0.75, 0.25], [0.5, 0.5]])).scale
        (0.0, 0.75)
    """

    source: tuple[str, ...]
    target: tuple[str, ...]
    weights: Tensor
    sides: tuple[str, str] = ("source", "target")

    def __post_init__(self) -> None:
        """Check and copy the arguments."""
        object.__setattr__(self, "source", _tokens("source", self.source))
        object.__setattr__(self, "target", _tokens("target", self.target))
        object.__setattr__(self, "weights", _checked(self.weights, self.source, self.target))

    def __repr__(self) -> str:
        """Return both texts, without the weights."""
        return f"Alignment(source={' '.join(self.source)!r}, target={' '.join(self.target)!r})"

    def _repr_html_(self) -> str:
        """Return the map for a notebook, with the strongest source token of each target token as its text."""
        if self.weights.numel() == 0:
            return table([(self.sides[0], " ".join(self.source)), (self.sides[1], " ".join(self.target))])
        strongest = self.weights.argmax(1).tolist()
        pairs = (f"{token} to {self.source[index]}" for token, index in zip(self.target, strongest, strict=True))
        from qkv.view.picture import svg

        return picture(svg([self]), f"Attention: {', '.join(pairs)}")

    @property
    def scale(self) -> tuple[float, float]:
        """The weights at the two ends of the color scale: the smallest, at most 0, and the largest."""
        if self.weights.numel() == 0:
            return 0.0, 1.0
        low = min(0.0, float(self.weights.min()))
        high = float(self.weights.max())
        return low, high if high > low else low + 1.0

    def fractions(self) -> Tensor:
        """Return the position of each weight on the color scale.

        Returns:
            Numbers from 0 to 1, (T, S), float64.

        Example:
            >>> Alignment(("a", "b"), ("c",), torch.tensor([[0.25, 0.5]])).fractions().tolist()
            [[0.5, 1.0]]
        """
        low, high = self.scale
        return ((self.weights - low) / (high - low)).clamp(0, 1)


def _tokens(side: str, tokens: object) -> tuple[str, ...]:
    hint = f'Give a tuple of tokens, for example {side}=("ein", "Hund").'
    if not isinstance(tokens, tuple | list):
        raise DtypeError(side, "a tuple of tokens", f"one {type(tokens).__name__}", hint)
    for index, token in enumerate(tokens):
        if not isinstance(token, str):
            raise DtypeError(f"{side}[{index}]", "a string", f"{token!r}", hint)
    return tuple(tokens)


def _checked(weights: object, source: Sequence[str], target: Sequence[str]) -> Tensor:
    if not isinstance(weights, Tensor):
        hint = "Convert it with torch.as_tensor."
        raise DtypeError("weights", "a floating-point tensor", f"one {type(weights).__name__}", hint)
    if not weights.is_floating_point():
        hint = "Convert it with weights.float()."
        raise DtypeError("weights", "a floating-point tensor", str(weights.dtype), hint)
    expected = (len(target), len(source))
    if weights.shape != expected:
        hint = "Give one row per target token and one column per source token: one sentence, one head."
        raise ShapeError("weights", f"(T, S) = {expected}", str(tuple(weights.shape)), hint)
    copy = weights.detach().to("cpu", torch.float64, copy=True)
    not_finite = (~copy.isfinite()).nonzero()
    if len(not_finite):
        t, s = not_finite[0].tolist()
        got = f"{copy[t, s].item()} from target {t} {target[t]!r} to source {s} {source[s]!r}"
        hint = "Check whether the scores of that row overflowed."
        raise DataError("weights", "finite numbers", got, hint)
    return copy
