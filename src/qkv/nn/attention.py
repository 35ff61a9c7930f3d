"""The one seam: every attention of every model runs through this module."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from qkv.biases import Bias
from qkv.errors import ConfigError, error_message
from qkv.functional import attention, attention_with_state, attention_with_weights
from qkv.masks.base import Mask
from qkv.normalizers.base import Normalizer
from qkv.normalizers.kinds import as_normalizer
from qkv.scores.base import Score
from qkv.scores.products import ScaledDot

_SCALED_DOT = ScaledDot()
Also = Literal["weights", "state"]
_CALLS: Mapping[Also | None, Callable[..., Any]] = MappingProxyType(
    {None: attention, "weights": attention_with_weights, "state": attention_with_state}
)


@final
class Attention(nn.Module):
    """`qkv.attention` as a module without parameters, so that a forward hook sees what is attended with.

    A hook registered with `with_kwargs=True` gets query, key and value in its positional arguments and score,
    normalizer, mask and bias by name; `qkv.record` is such a hook.

    Args:
        score: used where `forward` is given none; None for the engine's own default, the scaled dot product.
        normalizer: used where `forward` is given none; None for the score's own default.
        dropout: the share of weights dropped in training, in [0, 1).
        backend: which implementation computes, by name; "auto" for the cheapest that serves.
        also: "weights" or "state", for a module that returns a pair: the output, and the weights (..., Q, K) or the
            `RowState`; what points or copies is made of them.

    Raises:
        ConfigError: a dropout outside its range, or something else to return.

    Example:
        >>> query, key, value = torch.randn(3, 2, 4, 5, 8).unbind()
        >>> Attention()(query, key, value).shape
        torch.Size([2, 4, 5, 8])
    """

    def __init__(
        self,
        score: Score | None = None,
        normalizer: Normalizer | None = None,
        dropout: float = 0.0,
        *,
        backend: str = "auto",
        also: Also | None = None,
    ) -> None:
        super().__init__()
        if also not in _CALLS:
            raise ConfigError(
                error_message("also", '"weights", "state" or None', f"{also!r}", "None gives the output.")
            )
        if not 0.0 <= dropout < 1.0:
            raise ConfigError(error_message("dropout", "a share in [0, 1)", f"{dropout}", "0 switches it off."))
        self.score = score
        self.normalizer = None if normalizer is None else as_normalizer(normalizer)
        self.dropout = dropout
        self.backend = backend
        self.also: Also | None = also

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        score: Score | None = None,
        normalizer: Normalizer | None = None,
        mask: Mask | Tensor | None = None,
        bias: Tensor | Bias | None = None,
        generator: torch.Generator | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        """Attend.

        Args:
            query: (..., Q, D).
            key: (..., K, E).
            value: (..., K, V).
            score: in place of the module's own.
            normalizer: in place of the module's own.
            mask: True where a query may attend.
            bias: added to the scores; broadcasts to (..., Q, K).
            generator: draws the dropout's seed.
            enable_gqa: whether groups of query heads share a key head.

        Returns:
            The output (..., Q, V); with `also` a pair.

        Raises:
            OutOfMemoryError: no memory is left; says what would take less.
        """
        arguments = {
            "score": score or self.score or _SCALED_DOT,
            "normalizer": normalizer or self.normalizer,
            "mask": mask,
            "bias": bias,
            "dropout": self.dropout if self.training else 0.0,
            "generator": generator,
            "enable_gqa": enable_gqa,
            "backend": self.backend,
        }
        return _CALLS[self.also](query, key, value, **arguments)

    def extra_repr(self) -> str:
        """Show what differs from the default."""
        shown = {"score": self.score, "normalizer": self.normalizer, "dropout": self.dropout or None}
        return ", ".join(f"{name}={what}" for name, what in shown.items() if what is not None)
