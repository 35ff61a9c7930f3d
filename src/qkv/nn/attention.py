"""The one entry point: every attention of every model runs through this module."""

from collections.abc import Callable, Iterator, Mapping
from types import CodeType, MappingProxyType
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from qkv.biases import Bias
from qkv.engine.describe import Arguments
from qkv.errors import ConfigError
from qkv.functional import attention, attention_with_state, attention_with_state_alone, attention_with_weights
from qkv.masks.base import Mask
from qkv.nn.inputs import expect_fraction
from qkv.nn.normalizers import NormalizerModule
from qkv.nn.scores import ScoreModule
from qkv.normalizers.base import Normalizer
from qkv.normalizers.kinds import optional_normalizer
from qkv.scores.base import Score
from qkv.scores.free import as_score
from qkv.scores.products import SCALED_DOT
from qkv.values.checked import checked
from qkv.values.parameters import register, with_registered

SEAM = "qkv_attention"
"""The name of the `Attention` that another library's module has as a child."""
_INTERFACE = "ALL_ATTENTION_FUNCTIONS"
"""The table in which modules of `transformers` look up their attention, so that it can be exchanged."""
_BASES = ("torch.nn.modules.module", "transformers.modeling_utils")
"""The modules with the base classes of all models, which name the table without attending."""
Also = Literal["weights", "state", "rounded state"]
_CALLS: Mapping[Also | None, Callable[..., Any]] = MappingProxyType(
    {None: attention, "weights": attention_with_weights, "state": attention_with_state}
)
"""The functions that compute a call, by `also`. "rounded state", for hooks that observe a call, is computed apart."""


@checked
@final
class Attention(nn.Module):
    """`qkv.attention` as a module without parameters, so that a forward hook sees its inputs.

    A hook registered with `with_kwargs=True` gets query, key and value in its positional arguments and score,
    normalizer, mask and bias by name; `qkv.record` is such a hook.

    Args:
        score: default for `forward`, a value or a learned module of `qkv.nn`; None for the scaled dot product.
        normalizer: default for `forward`, a value or a learned module; None for the score's own default.
        dropout: the fraction of weights dropped in training, in [0, 1).
        backend: the implementation, by name; "auto" for the cheapest that supports the call.
        also: "weights" or "state" to return a pair: the output, and the weights (..., Q, K) or the `RowState`, which
            pointer and copy heads use.

    Raises:
        ConfigError: the dropout is outside its range, or `also` is unknown.

    Example:
        >>> query, key, value = torch.randn(3, 2, 4, 5, 8).unbind()
        >>> Attention()(query, key, value).shape
        torch.Size([2, 4, 5, 8])
    """

    def __init__(
        self,
        score: Score | ScoreModule | None = None,
        normalizer: Normalizer | NormalizerModule | None = None,
        dropout: float = 0.0,
        *,
        backend: str = "auto",
        also: Also | None = None,
    ) -> None:
        super().__init__()
        if also not in _CALLS:
            raise ConfigError("also", '"weights", "state" or None', f"{also!r}", "None returns the output alone.")
        expect_fraction("dropout", dropout)
        self.score = score
        optional_normalizer(normalizer)  # checks it; a module's value is built in each call, from its parameters then
        self.normalizer = normalizer
        self._learned = register(self, score), register(self, normalizer)
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
        also: Also | None = None,
    ) -> Any:
        """Compute attention.

        Args:
            query: (..., Q, D).
            key: (..., K, E).
            value: (..., K, V).
            score: overrides the module's default.
            normalizer: overrides the module's default.
            mask: True where a query may attend.
            bias: added to the scores; broadcasts to (..., Q, K).
            generator: source of the dropout's seed.
            enable_gqa: whether groups of query heads share a key head.
            also: overrides the module's default; "rounded state" is for hooks.

        Returns:
            The output (..., Q, V); a pair if `also` is set.

        Raises:
            OutOfMemoryError: memory ran out; the message says how to need less.
        """
        score, normalizer = self.mechanism(score, normalizer)
        dropout = self.dropout if self.training else 0.0
        also = self.also if also is None else also
        if also == "rounded state":
            arguments = Arguments(score, normalizer, mask, bias, dropout, generator, enable_gqa)
            return attention_with_state_alone(query, key, value, arguments, self.backend, rounded=True)
        return _CALLS[also](
            query,
            key,
            value,
            score=score,
            normalizer=normalizer,
            mask=mask,
            bias=bias,
            dropout=dropout,
            generator=generator,
            enable_gqa=enable_gqa,
            backend=self.backend,
        )

    def mechanism(self, score: Score | None, normalizer: Normalizer | None) -> tuple[Score, Normalizer | None]:
        """Return the score and the normalizer of a call with these arguments; None stands for the module's default.

        Example:
            >>> from qkv.normalizers.sparse import Sparsemax
            >>> Attention(normalizer=Sparsemax()).mechanism(None, None)
            (ScaledDot(scale=None, softcap=None), Sparsemax())
        """
        if score is None and self.score is not None:
            score = with_registered(self, self.score, self._learned[0])  # type: ignore[assignment]
        if normalizer is None:
            normalizer = with_registered(self, self.normalizer, self._learned[1])  # type: ignore[assignment]
        return as_score(SCALED_DOT if score is None else score), optional_normalizer(normalizer)

    def extra_repr(self) -> str:
        """Show the settings that differ from the defaults."""
        parts = {"score": self.score, "normalizer": self.normalizer, "dropout": self.dropout or None}
        # A module is shown as a part.
        shown = {name: part for name, part in parts.items() if part is not None and not isinstance(part, nn.Module)}
        return ", ".join(f"{name}={part}" for name, part in shown.items())


def attending(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules of `transformers` whose code calls its `AttentionInterface`, with their paths.

    Example:
        >>> list(attending(nn.TransformerEncoderLayer(8, 2)))
        []
    """
    return ((name, module) for name, module in model.named_modules() if _calls_interface(type(module)))


def _calls_interface(cls: type) -> bool:
    members = [member for base in cls.__mro__ if base.__module__ not in _BASES for member in vars(base).values()]
    return any(_INTERFACE in names for member in members for names in _names_in(member))


def _names_in(function: object) -> Iterator[tuple[str, ...]]:
    """Yield the global names that a function, without its decorators, and the functions inside it read."""
    while isinstance(function, Callable) and hasattr(function, "__wrapped__"):  # type: ignore[arg-type]
        function = function.__wrapped__
    code = getattr(function, "__code__", None)
    pending = [code] if isinstance(code, CodeType) else []
    while pending:
        code = pending.pop()
        yield code.co_names
        pending += [part for part in code.co_consts if isinstance(part, CodeType)]
