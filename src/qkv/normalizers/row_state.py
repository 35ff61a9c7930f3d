"""Row states: what a normalizer stores about the keys of a row, so that partial results can be merged.

Attention over the union of two disjoint sets of keys follows from the attention over each and their row states. This
merge is associative and commutative and has an identity (the state of no keys), so tiles, streams and shards on
several machines can be merged in any order. `Normalizer.state` and `Normalizer.merge` define both.

| normalizer | state of a row | merged output |
|---|---|---|
| softmax | lse = log Σ exp(s) | Σ exp(lse_i − lse) o_i |
| sum | total = Σ s | Σ (total_i / total) o_i |
| mean | n, the number of keys | Σ (n_i / n) o_i |
| identity | none | Σ o_i |
| hard | the largest score | the output of the largest; ties to the first |
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal, final

from torch import Tensor

from qkv.errors import ShapeError, UnsupportedError, error_message
from qkv.normalizers.kinds import KINDS, MERGEABLE
from qkv.shapes import show
from qkv.values.pytree import value

Kind = Literal["softmax", "sum", "mean", "identity", "hard", "sigmoid", "sparsemax", "entmax"]


@final
@value
@dataclass(frozen=True, eq=False)
class RowState:
    """What a normalizer stores about the keys of a row.

    Attributes:
        kind: the normalizer.
        value: (..., Q), at least float32: softmax: lse; sum: the total; mean, sigmoid: the number of visible keys;
            hard: the largest score; sparsemax, entmax: the threshold τ; identity: zeros.
    """

    kind: Kind
    value: Tensor

    @property
    def lse(self) -> Tensor:
        """log Σ exp(s) of each row, −inf for a fully masked row.

        Raises:
            UnsupportedError: the normalizer is not a softmax.
        """
        if self.kind != "softmax":
            raise UnsupportedError(
                error_message("state.lse", "the state of a softmax", f"that of {self.kind}", "Use state.value.")
            )
        return self.value


def merge(parts: Sequence[tuple[Tensor, RowState]]) -> tuple[Tensor, RowState]:
    """Merge attention over disjoint sets of keys into attention over their union.

    Args:
        parts: pairs of an output (..., Q, V) and its row state, as `attention_with_state` returns them, in the order
            of the keys. Only one of the parts may have a sink.

    Returns:
        The output and row state over all keys.

    Raises:
        ShapeError: there are no parts, or their shapes differ.
        UnsupportedError: the normalizers differ, or cannot be merged (sigmoid's default bias,
            sparsemax and entmax depend on the whole row).

    Source: Milakov and Gimelshein 2018, "Online normalizer calculation for softmax", section 3; Dao et al. 2022,
        "FlashAttention", section 3.1.

    Example:
        >>> import qkv
        >>> import torch
        >>> query, key, value = torch.randn(1, 4), torch.randn(6, 4), torch.randn(6, 2)
        >>> left = qkv.attention_with_state(query, key[:2], value[:2])
        >>> right = qkv.attention_with_state(query, key[2:], value[2:])
        >>> output, state = merge([left, right])
        >>> torch.allclose(output, qkv.attention(query, key, value), atol=1e-6)
        True
    """
    if not parts:
        raise ShapeError(
            error_message("parts", "at least one pair of output and state", "none", "Pass a list of pairs.")
        )
    _check([output for output, _ in parts], [state for _, state in parts])
    dtype, kind = parts[0][0].dtype, parts[0][1].kind
    normalizer = next(normalizer for normalizer, name in KINDS.items() if name == kind)
    output, state = reduce(normalizer.merge, [(output.to(state.value.dtype), state.value) for output, state in parts])
    return output.to(dtype), RowState(kind, state)


def _check(outputs: Sequence[Tensor], states: Sequence[RowState]) -> None:
    kinds = sorted({state.kind for state in states})
    if len(kinds) > 1:
        got = " and ".join(kinds)
        raise UnsupportedError(
            error_message("parts", "states of one normalizer", got, "Use one normalizer everywhere.")
        )
    if kinds[0] not in MERGEABLE:
        hint = f"{', '.join(MERGEABLE)} can be merged."
        raise UnsupportedError(error_message("parts", "a normalizer whose rows can be merged", kinds[0], hint))
    shapes = {tuple(output.shape) for output in outputs} | {(*s.value.shape, outputs[0].shape[-1]) for s in states}
    if len(shapes) > 1:
        got = ", ".join(show(shape) for shape in sorted(shapes))
        raise ShapeError(
            error_message("parts", "outputs (..., Q, V) of one shape", got, "Merge parts of the same queries.")
        )
