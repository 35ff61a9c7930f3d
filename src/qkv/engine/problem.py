"""The input of an algorithm: a problem (a value without tensors) and the tensors that go with it."""

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from qkv.engine.position_bias import Kind as PositionKind
from qkv.engine.position_bias import PositionBias
from qkv.masks.lower import Kind, Visibility
from qkv.normalizers.base import Normalizer
from qkv.scores.base import Core, Score
from qkv.scores.pointwise import KERNEL_SHAPES, Pointwise
from qkv.shapes import Shape
from qkv.values.execution import Mode, on_host
from qkv.values.parameters import regroup

_CACHE_LINE = 64
"""Bytes of a cache line; PyTorch aligns every allocation to one."""

_CORES: Mapping[str, str] = {
    "dot": "dot products",
    "tanh_sum": "sums of tanh",
    "relu_sum": "sums of two numbers",
    "distance": "distances",
    "tile": "a user-defined function",
}
"""What messages call the function on pairs of query and key."""

BiasKind = Literal["none", "fixed", "learned"] | PositionKind


Mapped = Literal["none", "matrices", "norms"]


class Problem(NamedTuple):
    """A description of an attention call without tensors: everything that decides how it is computed.

    Attributes:
        core: the function on pairs of query and key.
        pointwise: the function of one number that follows the core.
        normalizer: the normalizer's name, of `normalizers.kinds`.
        sink: whether the softmax has a sink.
        mask: the kind of the lowered mask.
        bias: none; a tensor, fixed or learned (needing a gradient); or a position bias, relative (a function of j − i)
            or any other (positions), and whether that is learned.
        dropout: whether weights are dropped.
        gradient: whether any gradient is needed.
        state: whether the row state is requested.
        leading: the leading shape, grouped heads as (G, H/G).
        queries, keys: Q and K.
        width, value_width: of the prepared operands (F), and of values (V).
        dtype, device: of query, key and value.
        mode: how PyTorch executes the call.
        forward_mode: whether tensors may carry tangents of forward-mode derivatives.
        constant: whether every score is 1.
        mapped: what the score does to queries or keys first: it multiplies them by matrices, or divides them by norms.
        block: the most keys that a block of rows in the middle sees, as in `Visibility`; None for all.
        threads: the number of threads that PyTorch uses; 1 where it is not known.
        rounded_state: whether a row state rounded to float32 suffices, if the exact one would take longer.
        repeats: how many heads of queries share one of keys, H/G.
    """

    core: Core
    pointwise: Pointwise
    normalizer: str
    sink: bool
    mask: Kind
    bias: BiasKind
    dropout: bool
    gradient: bool
    state: bool
    leading: Shape
    queries: int
    keys: int
    width: int
    value_width: int
    dtype: torch.dtype
    device: str
    mode: Mode = "eager"
    forward_mode: bool = False
    constant: bool = False
    mapped: Mapped = "none"
    block: int | None = None
    threads: int = 1
    rounded_state: bool = False
    repeats: int = 1

    @property
    def bias_by_tile(self) -> bool:
        """True for a position bias that is not a function of j − i alone."""
        return self.bias.startswith("positions")

    @property
    def as_given(self) -> bool:
        """True if PyTorch's kernel takes a call unchanged: no mapped operands, groups, biases, or masks but causal."""
        operands = self.mapped == "none" and not self.constant and self.repeats == 1
        return operands and self.mask in ("all", "causal") and self.bias == "none"

    @property
    def blurs(self) -> bool:
        """True for a softmax of a kernel, whose weights are nearly uniform."""
        return self.normalizer == "softmax" and isinstance(self.pointwise, KERNEL_SHAPES)

    @property
    def empty(self) -> bool:
        """True if any dimension has size 0."""
        return 0 in (self.rows, self.queries, self.keys, self.width, self.value_width)

    @property
    def positional(self) -> bool:
        """True if the bias is a function of positions."""
        return self.bias not in ("none", "fixed", "learned")

    @property
    def rows(self) -> int:
        """The number of leading indices (batch × heads)."""
        count = 1
        for size in self.leading:
            count = count * size
        return count

    @property
    def on_host(self) -> bool:
        """Whether the tensors lie in the processor's own memory: see `qkv.values.execution.on_host`."""
        return on_host(torch.device(self.device))

    def __str__(self) -> str:
        """Return one line for error messages."""
        lead = "".join(f"{size}×" for size in self.leading)
        shape = f"{lead}{self.queries} queries × {self.keys} keys, widths {self.width} and {self.value_width}"
        pointwise = "" if type(self.pointwise).__name__ == "Linear" else f" ({self.pointwise})"
        scores = f"{core_text(self.core)}{pointwise} under {self.normalizer}, mask {self.mask}"
        return f"{scores}, {shape}, {self.dtype}, {self.device}"


def without_hidden(
    visibility: Visibility, query: Tensor, key: Tensor, value: Tensor, keys: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Zero queries that see nothing, and keys and values that no query sees, see `Call.without_hidden_keys`."""
    visible_keys = visibility.keys_with_queries() if keys else None
    if visible_keys is not None:
        # A tensor of 0, made once: the operator would make one of a number in each call.
        visible_K1, zero = visible_keys.unsqueeze(-1), key.new_zeros(())
        key, value = torch.where(visible_K1, key, zero), torch.where(visible_K1, value, zero)
    nonempty_rows = None if visibility.kind == "causal" else visibility.rows_with_keys()
    if nonempty_rows is not None:
        query = torch.where(nonempty_rows.unsqueeze(-1), query, 0.0)
    return query, key, value


def core_text(core: Core) -> str:
    """Return what messages call a core; a core from outside is called by its name.

    Example:
        >>> core_text("tile")
        'a user-defined function'
    """
    return _CORES.get(core, core)


def first_reason(*reasons: tuple[bool, str]) -> str | None:
    """Return the first of several reasons to refuse a problem that holds, None if none does.

    Example:
        >>> first_reason((False, "a bias is added to the scores"), (True, "an axis is empty"))
        'an axis is empty'
    """
    return next((reason for holds, reason in reasons if holds), None)


def is_not(problem: Problem, core: Core) -> tuple[bool, str]:
    """Return whether scores are of another core, and that as a reason to refuse them."""
    return problem.core != core, f"the scores are {core_text(problem.core)}, not {core_text(core)}"


class Call(NamedTuple):
    """The tensors that go with a problem.

    Attributes:
        query, key, value: (..., Q, D), (..., K, E), (..., K, V), leading shapes that broadcast to the problem's;
            keys and values that no query may see are zero, unless the algorithm does not read them.
        score, normalizer: the mechanism, parameters laid out as the leading shape.
        visibility: the lowered mask.
        bias: added to the scores: a tensor that broadcasts to (..., Q, K), or a position bias.
        dropout: the probability of dropping a weight.
        seed: one int64 tensor; which weights are dropped is a function of (seed, row, key).
    """

    query: Tensor
    key: Tensor
    value: Tensor
    score: Score
    normalizer: Normalizer
    visibility: Visibility
    bias: Tensor | PositionBias | None = None
    dropout: float = 0.0
    seed: Tensor | None = None

    @property
    def bias_tensor(self) -> Tensor | None:
        """The bias, a tensor or None, for algorithms that refuse position biases."""
        assert not isinstance(self.bias, PositionBias)
        return self.bias

    def in_groups(self) -> "Call":
        """Split the heads of the query into groups, (G, H/G), over which keys and values broadcast.

        Returns:
            The same call of a grouped problem, whose tensors were as the caller gave them.
        """
        groups = self.visibility.groups
        assert groups is not None
        return self._replace(
            query=regroup(self.query, 2, *groups), key=self.key.unsqueeze(-3), value=self.value.unsqueeze(-3)
        )

    def scored(self) -> list[object]:
        """Return what the scores are computed from: query, key, bias, and the score's parameters."""
        biases = self.bias.tensors() if isinstance(self.bias, PositionBias) else [self.bias]
        return [self.query, self.key, *(getattr(self.score, part.name) for part in self.score.parameters), *biases]

    def without_hidden_keys(self, keys: bool = True) -> "Call":
        """Zero keys and values that no query sees, so that their contents cannot reach a result or a gradient.

        Args:
            keys: whether keys and values are zeroed too, and not only queries that see nothing.

        Returns:
            The same call, with those rows replaced by zeros.

        Example:
            >>> from qkv.engine.describe import Arguments, describe
            >>> from qkv.masks.patterns import lengths
            >>> x = torch.full((1, 3, 2), torch.nan)
            >>> mask = lengths(torch.tensor([0]))
            >>> arguments = Arguments(lambda query, key: query @ key.mT, None, mask, None, 0.0, None, False)
            >>> describe(x, x, x, arguments).call.without_hidden_keys().key.sum()
            tensor(0.)
        """
        visibility = self.visibility
        if visibility.kind == "all" and visibility.grid.keys:
            return self
        query, key, value = without_hidden(visibility, self.query, self.key, self.value, keys)
        return Call(query, key, value, *self[3:])

    def with_finite_values(self) -> "Call":
        """Zero keys and values that no query sees only where a value is not finite, for weights that multiply values.

        A weight of 0 times a finite value adds nothing to a sum, and one sum of all values takes a fraction of the time
        of two copies. This is for calls without gradients, on numbers that may be read, of algorithms that replace
        hidden scores whatever they are, and in which no key decides how another one's scores are computed. PyTorch's
        products round by the place of their operands in memory, so that operands whose copies would lie otherwise are
        always copied: hidden numbers change no bit.

        Example:
            >>> from qkv.engine.describe import Arguments, describe
            >>> from qkv.masks.patterns import lengths
            >>> arguments = Arguments(lambda query, key: query @ key.mT, None, lengths(1), None, 0.0, None, False)
            >>> x = torch.tensor([[1.0], [2.0]])
            >>> [describe(x, x, value, arguments).call.with_finite_values().key[1] for value in (x, x / 0)]
            [tensor([2.]), tensor([0.])]
        """
        alike = _same_for_heads(self.visibility)
        if not all(_lies_like_its_copy(x, self.visibility.grid.leading, alike) for x in self[:3]):
            return self.without_hidden_keys()
        total = float(self.value.sum())
        return self if total - total == 0 else self.without_hidden_keys()


def hiding(problem: Problem) -> Callable[[Call], Call]:
    """Return the method of `Call` that zeroes keys and values no query may see, if they could change the result."""
    # A user-defined score may compare keys; so do distances that are computed from products, and the search for ties.
    alone = problem.core not in ("tile", "distance") and problem.normalizer != "hard"
    readable = problem.mode == "eager" and problem.device == "cpu" and not problem.gradient
    return Call.with_finite_values if alone and readable else Call.without_hidden_keys


def _same_for_heads(visibility: Visibility) -> bool:
    """Return whether the bounds of a mask show that all heads of an item see the same keys."""
    bounds = visibility.bounds or ()
    return visibility.kind == "keys" and all(x is None or x.ndim < 2 or x.shape[-2] == 1 for x in bounds)


def _lies_like_its_copy(x: Tensor, leading: Shape, alike: bool) -> bool:
    """Return whether a copy of all leading dimensions has the strides of a tensor and begins a cache line like it.

    Args:
        x: query, key or value.
        leading: the leading shape of the problem.
        alike: whether rows are zeroed in all heads of an item alike. Then a copy keeps the order of heads and rows.
    """
    if x.shape[:-2] != leading or x.data_ptr() % _CACHE_LINE:
        return False
    return x.is_contiguous() or (alike and x.ndim > 2 and x.transpose(-3, -2).is_contiguous())
