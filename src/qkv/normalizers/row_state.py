"""Row states: what a normalizer stores about the keys of a row, so that partial results can be merged.

Attention over the union of disjoint sets of keys follows from the attention over each and their row states. This merge
is associative and commutative and has an identity (the state of no keys), so tiles, streams and shards on several
machines can be merged in any order and grouping. `Normalizer.state` and `Normalizer.merge` define both.

| normalizer | state of a row | merged output |
|---|---|---|
| softmax, Gaussian under sum | lse = log Σ exp(s) | Σ exp(lse_i − lse) o_i |
| sum | total = Σ s | Σ (total_i / total) o_i |
| mean | n, the number of keys | Σ (n_i / n) o_i |
| identity | none | Σ o_i |
| hard | the largest score, and the position of its first key | the output of the largest; ties to the first key |

States are float64: a log-sum-exp of 40 rounded to float32 changes every merged weight by 2e-6. A Gaussian under its sum
is a softmax of −d²/2h², and so is its state, as the sum itself underflows far from all keys.

Only hard attention depends on the order of the keys. Its states name the winning key by its position among the keys of
their part, so `merge` must know where each part begins: by default after the one before it in the list, or at `starts`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import accumulate
from typing import Literal, final

import torch
from torch import Tensor

from qkv.errors import ArgumentError, ShapeError, UnsupportedError
from qkv.normalizers.dense import Hard
from qkv.normalizers.kinds import KINDS, MERGEABLE
from qkv.shapes import show
from qkv.values.checked import checked, explained, is_whole_number
from qkv.values.pytree import value

_PARTS = "Pass a list of what qkv.attention_with_state returns."
Kind = Literal["softmax", "sum", "mean", "identity", "hard", "sigmoid", "sparsemax", "entmax"]


@explained
@final
@value
@dataclass(frozen=True, eq=False)
class RowState:
    """What a normalizer stores about the keys of a row, for example the log-sum-exp of a softmax.

    `attention_with_state` returns it, and `merge` joins the states of disjoint sets of keys.

    Attributes:
        kind: the normalizer; "softmax" also for a Gaussian under its sum.
        value: (..., Q), float64: softmax: lse; sum: the total; mean, sigmoid: the number of visible keys; hard: the
            largest score; sparsemax, entmax: the threshold τ; identity: zeros.
        winner: of hard, the position of the first key with the largest score, int64 (..., Q), −1 for a fully masked
            row; None if it is not known.
        keys: of hard, the number of keys, masked ones included; None if it is not known.
        sink: whether the lse counts a sink, which only one of several parts may have.
        signed: whether the total may count scores below 0, because of a bias: parts whose totals cancel have lost what
            they would add to a merged output.

    Example:
        >>> RowState("softmax", torch.tensor([0.5, -torch.inf], dtype=torch.float64)).lse
        tensor([0.5000,   -inf], dtype=torch.float64)
    """

    kind: Kind
    value: Tensor
    winner: Tensor | None = None
    keys: int | None = None
    sink: bool = False
    signed: bool = False

    @property
    def lse(self) -> Tensor:
        """log Σ exp(s) of each row, −inf for a fully masked row.

        Raises:
            UnsupportedError: the normalizer is not a softmax.
        """
        if self.kind != "softmax":
            raise UnsupportedError("state.lse", "the state of a softmax", f"that of {self.kind}", "Use state.value.")
        return self.value

    @property
    def weightless(self) -> Tensor:
        """Whether all weights of a row are 0, bool (..., Q): it sees no key, or none within a kernel's support.

        Raises:
            UnsupportedError: the state does not tell: that of identity or sigmoid.

        Example:
            >>> RowState("softmax", torch.tensor([-torch.inf, 0.0])).weightless
            tensor([ True, False])
        """
        match self.kind:
            case "softmax" | "hard":
                return self.value == -torch.inf
            case "sum" | "mean":
                return self.value == 0
            case "sparsemax" | "entmax":
                return self.value == torch.inf
        hint = "Its weights are not normalized over a row."
        raise UnsupportedError("state.weightless", "a state that shows it", self.kind, hint)

    def map(self, function: Callable[[Tensor], Tensor]) -> "RowState":
        """Apply a function, such as a slice of rows, to each tensor (..., Q).

        Example:
            >>> RowState("mean", torch.tensor([3.0, 4.0])).map(lambda x: x[1:]).value
            tensor([4.])
        """
        winner = None if self.winner is None else function(self.winner)
        return replace(self, value=function(self.value), winner=winner)


@checked
def merge(parts: Sequence[tuple[Tensor, RowState]], starts: Sequence[int] | None = None) -> tuple[Tensor, RowState]:
    """Merge attention over disjoint sets of keys into attention over their union, in any order and grouping.

    Args:
        parts: pairs of an output (..., Q, V) and its row state, as `attention_with_state` returns them. Only one of
            the parts may have a sink.
        starts: the position of each part's first key among all keys, so that `Hard` can give ties to the first key;
            no other normalizer needs it. None if each part's keys follow those of the part before it. A merged part
            begins where its first part did, or at 0 if its parts had `starts`.

    Returns:
        The output and row state over all keys.

    Raises:
        ShapeError: there are no parts, their shapes differ, or the number of starts differs from that of parts.
        ArgumentError: the parts are not pairs of an output and a row state, or a start is not a whole number from 0.
        UnsupportedError: several parts have a sink; a bias made scores under a sum negative, so that totals cancel; or
            the normalizers differ, or cannot be merged (sigmoid's default bias, sparsemax and entmax depend on the
            whole row).

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
    if not isinstance(parts, Sequence):
        raise ArgumentError("parts", "a list of pairs of an output and a RowState", type(parts).__name__, _PARTS)
    if not parts:
        raise ShapeError("parts", "at least one pair of output and state", "none", "Pass a list of pairs.")
    for part in parts:
        if not _is_part(part):
            raise ArgumentError("parts", "pairs of an output and a RowState", type(part).__name__, _PARTS)
    states = [state for _, state in parts]
    _check([output for output, _ in parts], states)
    if starts is not None and len(starts) != len(parts):
        hint = "Pass the position of each part's first key."
        raise ShapeError("starts", f"{len(parts)} numbers, one for each part", f"{len(starts)}", hint)
    for start in starts or ():
        if not is_whole_number(start) or start < 0:
            raise ArgumentError("starts", "whole numbers from 0", repr(start), "Positions of keys count from 0.")
    dtype, kind = parts[0][0].dtype, states[0].kind
    # States read from older files are float32.
    partials = [(output.double(), state.value.double()) for output, state in parts]
    winners, keys = _positions(states, starts)
    if winners is not None:
        placed = [(*partial, winner) for partial, winner in zip(partials, winners, strict=True)]
        output, value, winner = reduce(Hard.merge_placed, placed)
        return output.to(dtype), RowState(kind, value, winner, keys)
    normalizer = next(normalizer for normalizer, name in KINDS.items() if name == kind)
    output, value = reduce(normalizer.merge, partials)
    return output.to(dtype), RowState(kind, value, sink=any(state.sink for state in states), signed=states[0].signed)


def _is_part(part: object) -> bool:
    return (
        isinstance(part, Sequence) and len(part) == 2 and isinstance(part[0], Tensor) and isinstance(part[1], RowState)
    )


def _positions(states: Sequence[RowState], starts: Sequence[int] | None) -> tuple[list[Tensor] | None, int | None]:
    """Return the winners of all parts as positions among all keys, and the number of keys; None if not known."""
    winners = [state.winner for state in states if state.winner is not None]
    lengths = [state.keys for state in states if state.keys is not None]
    if len(winners) < len(states) or len(lengths) < len(states):
        return None, None
    before = list(accumulate(lengths[:-1], initial=0)) if starts is None else starts
    among_all = [torch.where(x < 0, x, x + start) for x, start in zip(winners, before, strict=True)]
    return among_all, max(start + length for start, length in zip(before, lengths, strict=True))


def _check(outputs: Sequence[Tensor], states: Sequence[RowState]) -> None:
    kinds = sorted({state.kind for state in states})
    if len(kinds) > 1:
        got = " and ".join(kinds)
        raise UnsupportedError("parts", "states of one normalizer", got, "Use one normalizer everywhere.")
    if kinds[0] not in MERGEABLE:
        hint = f"{', '.join(MERGEABLE)} can be merged."
        raise UnsupportedError("parts", "a normalizer whose rows can be merged", kinds[0], hint)
    if sum(state.sink for state in states) > 1:
        hint = "Give the sink to one part; compute the others with Softmax()."
        raise UnsupportedError("parts", "one part with a sink", "several", hint)
    if len(states) > 1 and any(state.signed for state in states):
        hint = "Compute the rows over all their keys at once; Identity() gives Σ s v, which can be merged."
        raise UnsupportedError("parts", "sums of scores that are never negative", "a sum with a bias below 0", hint)
    shapes = {tuple(output.shape) for output in outputs} | {(*s.value.shape, outputs[0].shape[-1]) for s in states}
    if len(shapes) > 1:
        got = ", ".join(show(shape) for shape in sorted(shapes))
        raise ShapeError("parts", "outputs (..., Q, V) of one shape", got, "Merge parts of the same queries.")
