"""The lazy map: the weight matrix, of which only the requested parts are computed."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from numbers import Integral
from types import EllipsisType
from typing import Any, Literal, final

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from qkv.argument_names import ATTENTION, explain_arguments
from qkv.biases import Bias
from qkv.engine.describe import Arguments, DescribedCall, describe
from qkv.engine.problem import Call
from qkv.engine.winners import values_of, winners
from qkv.errors import ConfigError, ShapeError, UnsupportedError, out_of_memory_text
from qkv.introspect import gradients
from qkv.introspect.display import viewer
from qkv.introspect.snapshot import Unchanged, copied
from qkv.introspect.statistics import Statistics, WeightSource, check_entropy, gather, pool, sum_error, without_gradient
from qkv.introspect.tiles import tile
from qkv.masks.base import Mask
from qkv.normalizers.base import Normalizer
from qkv.normalizers.kinds import KNOWN
from qkv.normalizers.row_state import RowState
from qkv.planner.plan import plan_for
from qkv.scores.base import Score
from qkv.scores.kernels import SquaredDistance
from qkv.scores.products import SCALED_DOT
from qkv.shapes import Shape, show
from qkv.values.checked import answering, checked
from qkv.values.parameters import expect_floats
from qkv.values.sharded import ACTIVE

TENSOR_LIMIT = 1 << 22
"""The most weights of a map that is taken for a tensor: 16 MiB of float32."""
DENSE_LIMIT = 1 << 26
"""The most weights that `dense()` computes by default: 256 MiB of float32."""
_EXAMPLE = "Example: amap[0, 3, 10:20, 0:64] or amap[..., 10:20, 0:64]."

Index = int | slice


class MapIndexError(ShapeError, IndexError):
    """An index that a map does not have."""


@answering
@final
class AttentionMap:
    """A lazy (..., Q, K) matrix of weights, returned by `attention_map`.

    `amap[..., 10:20, 0:64]` is an exact tile; the last two indices select queries and keys, the others the leading
    dimensions. Memory grows with the requested part, never with Q·K.

    A map shows the numbers that its tensors held when it was made: it holds copies, and its gradients reach the tensors
    themselves. Not copied are a bias, a mask or a parameter of more numbers than query and key together, and what
    user-defined functions read: once PyTorch has recorded a change of these, the map raises UnsupportedError. A change
    of these through NumPy or `.data` leaves no record and must not happen while a map is in use.

    Code that expects a tensor works on a map of at most `TENSOR_LIMIT` weights (4,194,304): every function of PyTorch
    and NumPy, method of a tensor, operator and index computes the matrix first. A larger map raises UnsupportedError
    there; ask it for a tile, `pooled` or `dense`.

    Inside of `qkv.distributed.shard`, the map has the rows of this process and the keys of all, and no gradient;
    `received` adds up the rows of all processes, which must all ask for it.

    Attributes:
        shape: (..., Q, K).

    Example:
        >>> amap = attention_map(torch.zeros(2, 4), torch.zeros(2, 4))
        >>> amap.mean(-1), torch.stack([amap, 2 * amap]).shape
        (tensor([0.5000, 0.5000]), torch.Size([2, 2, 2]))
    """

    def __init__(
        self,
        described: DescribedCall,
        state: Tensor | Callable[[], Tensor],
        inputs: tuple[Tensor, Tensor, Arguments],
        from_caller: bool = False,
    ) -> None:
        self._described_call, self._inputs, self._unchanged = described.call, inputs, Unchanged(described.call)
        self._state_from_caller = from_caller
        self._total: Callable[[Tensor], Tensor] | None = None
        self._kind = described.problem.normalizer
        self._state_or_pass = state
        self._inner = described.problem.leading
        self.shape: Shape = (*described.leading, described.problem.queries, described.problem.keys)

    def __repr__(self) -> str:
        return f"AttentionMap{show(self.shape)}"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of PyTorch on the matrix."""
        args, kwargs = tree_map_only(AttentionMap, AttentionMap._tensor, (args, kwargs or {}))
        return func(*args, **kwargs)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Compute the matrix as a NumPy array; dtypes that NumPy does not have become float32."""
        tensor = self._tensor().detach().cpu()
        array = (tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()).numpy()
        return array if dtype is None else array.astype(dtype)

    def __dlpack__(self, **options: Any) -> Any:
        """Compute the matrix for `torch.as_tensor`, `torch.tensor` and other libraries' `from_dlpack`."""
        return self._tensor().detach().__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        """Return where the matrix will be."""
        return torch.empty(0, device=self.device).__dlpack_device__()

    def __getattr__(self, name: str) -> Any:
        """Return an attribute or a method of the matrix, as a tensor."""
        if name.startswith("_") or not hasattr(Tensor, name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if not callable(getattr(Tensor, name)):
            return getattr(self._tensor(), name)
        return partial(self._call_tensor, name)

    def _call_tensor(self, name: str, *args: Any, **options: Any) -> Any:
        """Call a method of a tensor on the matrix."""
        return getattr(self._tensor(), name)(*args, **options)

    def __len__(self) -> int:
        return self.shape[0]

    def __deepcopy__(self, memo: object) -> "AttentionMap":
        """Return the map itself: its numbers never change, and it checks that its tensors are unchanged."""
        return self

    def __bool__(self) -> bool:
        return True

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the weights."""
        return self[..., :1, :1].dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are computed."""
        return self._described_call.query.device

    def dim(self) -> int:
        """Return the number of dimensions."""
        return len(self.shape)

    def numel(self) -> int:
        """Return the number of weights."""
        return prod(self.shape)

    def size(self, dim: int | None = None) -> Any:
        """Return the shape, or one of its sizes."""
        return torch.Size(self.shape) if dim is None else self.shape[dim]

    def _tensor(self) -> Tensor:
        """Return the matrix for code that expects a tensor.

        Raises:
            UnsupportedError: the map is large.
        """
        if prod(self.shape) > TENSOR_LIMIT:
            hint = "Ask for a tile, amap[..., 0:64, 0:64], or amap.pooled(256, 256); amap.dense() gives the matrix."
            got = f"{prod(self.shape):,}"
            expected = f"at most {TENSOR_LIMIT:,} weights where a tensor is expected"
            raise UnsupportedError("AttentionMap", expected, got, hint)
        return self.dense(None)

    def show(
        self,
        row: int = 0,
        tokens: Mapping[str, Sequence[str]] | None = None,
        *,
        port: int = 0,
        browser: bool = True,
    ) -> Any:
        """Open one row of the batch in the viewer: in a notebook inside the page, elsewhere in a browser.

        Its address is printed. Keys stand for the values, which a map does not have.

        Args:
            row: index of the row, if there is a batch.
            tokens: the tokens, by the name of their sequence: "text" if there are as many queries as keys, else
                "target" and "source"; None to number positions.
            port: port on 127.0.0.1; 0 for any free port.
            browser: whether to open a browser.

        Returns:
            The running viewer: its `url`, `wait()` and `close()`.

        Raises:
            UnsupportedError: the viewer's libraries are not installed.
            ConfigError: the port is in use.
            ShapeError: there is no such row.
        """
        return viewer().show(self._inputs, row, tokens, port, browser)

    def _repr_html_(self) -> str:
        """Display the first row in a notebook if it is small; otherwise say how to open it."""
        return viewer().notebook(self._inputs)

    @property
    def state(self) -> RowState:
        """The row state of all rows, as `attention_with_state` returns it.

        Raises:
            UnsupportedError: the normalizer is `Hard`, whose map stores the winning key of each row instead; or
                user-defined, for which no row state is stored.
        """
        if self._kind == "hard":
            hint = "attention_with_state gives the largest score of each row."
            raise UnsupportedError("state", "a normalizer other than Hard", "Hard", hint)
        if self._kind not in KNOWN:
            hint = "Its rows are recomputed in full whenever they are needed."
            raise UnsupportedError("state", "a value of qkv.normalizers", self._kind, hint)
        return RowState(self._kind, self._state.reshape(self.shape[:-1]))  # type: ignore[arg-type]

    def __getitem__(self, index: "Index | EllipsisType | tuple[Index | EllipsisType, ...]") -> Tensor:
        """Return an exact part of the matrix; integers drop a dimension, slices keep it.

        Other indices, such as steps, lists and masks, are applied to the whole matrix, if it is small.

        Raises:
            MapIndexError: an index is out of range; it is an IndexError too.
            ShapeError: there are too many indices, or the matrix is large and one is not an integer or a plain slice.
        """
        several = tuple(map(_as_index, index if isinstance(index, tuple) else (index,)))
        text = any(isinstance(part, str) for part in several)
        if (
            not text
            and not all(part is Ellipsis or _fits(part) for part in several)
            and prod(self.shape) <= TENSOR_LIMIT
        ):
            weights = self._tensor()
            try:
                return weights[several]
            except (IndexError, TypeError, ValueError, RuntimeError) as error:
                if out_of_memory_text(error) is not None:
                    raise
                expected = f"an index of a tensor of shape {show(self.shape)}"
                raise MapIndexError("index", expected, str(index), _EXAMPLE) from error
        indices = self._indices(several)
        rows, columns = (_as_slice(part, size) for part, size in zip(indices[-2:], self.shape[-2:], strict=True))
        weights = tile(self._call, self._kind, lambda: self._state, rows, columns, self._state_from_caller)
        weights = weights.expand(*self._inner, *weights.shape[-2:]).reshape(*self.shape[:-2], *weights.shape[-2:])
        return weights[(*indices[:-2], *(0 if isinstance(part, int) else slice(None) for part in indices[-2:]))]

    def row(self, query: int) -> Tensor:
        """Return the weights of one query.

        Args:
            query: its position; negative counts from the end.

        Returns:
            (..., K).

        Raises:
            MapIndexError: there is no such query; it is an IndexError too.
        """
        return self[..., query, :]

    def column(self, key: int) -> Tensor:
        """Return the weights that all queries give to one key.

        Args:
            key: its position; negative counts from the end.

        Returns:
            (..., Q).

        Raises:
            MapIndexError: there is no such key; it is an IndexError too.
        """
        return self[..., :, key]

    def dense(self, limit: int | None = DENSE_LIMIT) -> Tensor:
        """Return the whole matrix.

        Args:
            limit: maximum number of weights; None for no limit.

        Returns:
            (..., Q, K).

        Raises:
            UnsupportedError: the matrix has more weights.
        """
        size = prod(self.shape)
        if limit is not None and size > limit:
            hint = "Read tiles instead, or pass limit=None if the whole matrix fits in memory."
            raise UnsupportedError("dense(limit)", f"at most {limit:,} weights", f"{size:,}", hint)
        return self[..., :, :]

    def received(self) -> Tensor:
        """Return the weight each key receives: Σ_i w_ij, summed in float64; differentiable.

        Returns:
            (..., K), float64.

        Example:
            >>> amap = attention_map(torch.zeros(3, 2), torch.zeros(4, 2))
            >>> amap.received()
            tensor([0.7500, 0.7500, 0.7500, 0.7500], dtype=torch.float64)
        """
        if self._total is None and gradients.possible(self._call):
            return self._by_key(gradients.received(self._source))
        received = self.statistics("received").received
        assert received is not None
        return received

    def entropy(self) -> Tensor:
        """Return the entropy of each row: −Σ_j w_ij log w_ij in nats, 0 for a single key; differentiable.

        Returns:
            (..., Q), float64.

        Raises:
            UnsupportedError: weights can be negative.
        """
        if gradients.possible(self._call):
            check_entropy(self._source)
            return gradients.entropy(self._source).reshape(self.shape[:-1])
        entropy = self.statistics("entropy").entropy
        assert entropy is not None
        return entropy

    def topk(self, count: int) -> tuple[Tensor, Tensor]:
        """Return the largest weights of each row.

        Args:
            count: n, number of weights.

        Returns:
            Weights (..., Q, n) in descending order, and their keys (..., Q, n), int64; ties go to earlier keys
            (the keys of zero weights are arbitrary). They have no gradient.

        Raises:
            ConfigError: more than there are keys.
        """
        largest = self.statistics(topk=count)
        if largest.weights is None or largest.keys is None:
            raise ConfigError("count", "1 or more", str(count), "For the largest weight alone use peak().")
        return largest.weights, largest.keys

    def peak(self) -> Tensor:
        """Return the largest weight of each row.

        Returns:
            (..., Q). It has no gradient.
        """
        peak = self.statistics("peak").peak
        assert peak is not None
        return peak

    def pooled(self, height: int, width: int, how: Literal["mean", "max"] = "mean") -> Tensor:
        """Return a downsampled matrix that covers every weight.

        Args:
            height, width: number of blocks; block a of rows begins at row ⌈a·Q/height⌉, likewise for keys.
            how: "mean", in float64, or "max".

        Returns:
            (..., height, width). It has no gradient.

        Raises:
            ConfigError: more blocks than rows or keys.
        """
        cells = pool(self._source, (height, width), how).reshape(*self.shape[:-2], height, width)
        return without_gradient("pooled", cells, gradients.differentiable_parameters(self._call))

    def statistics(self, *names: Literal["received", "entropy", "peak", "total"], topk: int = 0) -> Statistics:
        """Compute several statistics in one pass over the weights, without storing the matrix.

        Args:
            names: the statistics.
            topk: number of largest weights per row; 0 for none.

        Returns:
            A value with one attribute for each; they have no gradient (see `received`, `entropy`).

        Raises:
            ConfigError: a name is unknown, or `topk` exceeds the number of keys.
            UnsupportedError: entropy of weights that can be negative.
            ShapeError: the given state belongs to other rows: their weights do not sum to what the normalizer promises.

        Example:
            >>> query, key = torch.randn(2, 1, 1000, 16).unbind()
            >>> result = attention_map(query, key).statistics("received", "entropy", topk=3)
            >>> result.received.shape, result.entropy.shape, result.keys.shape, result.error < 1e-5
            (torch.Size([1, 1000]), torch.Size([1, 1000]), torch.Size([1, 1000, 3]), True)
        """
        result = gather(self._source, names, topk)
        anchors = gradients.differentiable_parameters(self._call)
        rows = {"entropy": result.entropy, "peak": result.peak, "total": result.total, "weights": result.weights}
        first = len(self._inner) + 1
        shaped = {name: x.reshape(*self.shape[:-1], *x.shape[first:]) for name, x in rows.items() if x is not None}
        if result.received is not None:
            received = self._by_key(result.received)
            shaped["received"] = received if self._total is None else self._total(received)
        values = {name: without_gradient(name, x, anchors) for name, x in shaped.items()}
        keys = None if result.keys is None else result.keys.reshape(*self.shape[:-1], result.keys.shape[-1])
        return Statistics(**values, keys=keys, error=result.error)

    def error(self, rows: int = 32) -> float | None:
        """Check the sums of sampled rows against what the normalizer promises: 1, or 0 for a fully masked row.

        Args:
            rows: number of rows, evenly spaced from the first to the last.

        Returns:
            The largest error; None if the normalizer promises nothing.

        Raises:
            ConfigError: the number of rows is not above 0.
            ShapeError: the error is far more than rounding: the given state belongs to other rows.
        """
        if rows < 1:
            raise ConfigError("rows", "1 or more", f"{rows}", "Without rows there is nothing to check.")
        sampled = _spread_evenly(self.shape[-2], rows)
        with torch.no_grad():
            sums = [self[..., query, :].sum(-1, dtype=torch.float64) for query in sampled.tolist()]
        if not sums:
            return None
        total = torch.stack(sums, -1).reshape(*self._inner, len(sums))
        return sum_error(self._source, total, sampled.to(total.device))

    @property
    def _state(self) -> Tensor:
        if not isinstance(self._state_or_pass, Tensor):
            self._unchanged.check()
            self._state_or_pass = self._state_or_pass()
        return self._state_or_pass

    @property
    def _call(self) -> Call:
        self._unchanged.check()
        return self._described_call

    @property
    def _source(self) -> WeightSource:
        return WeightSource(
            self._call, self._kind, self._state, (*self._inner, *self.shape[-2:]), self._state_from_caller
        )

    def _by_key(self, x: Tensor) -> Tensor:
        return x.reshape(*self.shape[:-2], self.shape[-1])

    def _indices(self, index: Sequence[Index | EllipsisType]) -> list[Index]:
        """Return one index per dimension, filling up with full slices."""
        gap = next((at for at, part in enumerate(index) if part is Ellipsis), len(index))
        before = [part for part in index[:gap] if not isinstance(part, EllipsisType)]
        after = [part for part in index[gap + 1 :] if not isinstance(part, EllipsisType)]
        missing = len(self.shape) - len(before) - len(after)
        good = missing >= 0 and all(_fits(part) for part in (*before, *after))
        if not good or len(before) + len(after) + (gap < len(index)) != len(index):
            raise ShapeError("index", f"integers and plain slices of {show(self.shape)}", str(index), _EXAMPLE)
        indices = [*before, *[slice(None)] * missing, *after]
        for dimension, (part, size) in enumerate(zip(indices, self.shape, strict=True)):
            if isinstance(part, int) and not -size <= part < size:
                expected = f"an index below {size} of dimension {dimension} of {show(self.shape)}"
                raise MapIndexError("index", expected, f"{part}", "Negative indices count from the end.")
        return indices


def _operator(name: str) -> Callable[..., Any]:
    """Return a method of maps that applies a tensor's operator to the matrix."""

    def apply(self: AttentionMap, *others: Any) -> Any:
        operands = [other._tensor() if isinstance(other, AttentionMap) else other for other in others]
        return getattr(self._tensor(), name)(*operands)

    return apply


for _name in ("add", "sub", "mul", "truediv", "pow", "matmul", "mod", "floordiv"):
    for _form in (f"__{_name}__", f"__r{_name}__"):
        setattr(AttentionMap, _form, _operator(_form))
for _name in ("neg", "pos", "abs", "eq", "ne", "lt", "le", "gt", "ge"):
    setattr(AttentionMap, f"__{_name}__", _operator(f"__{_name}__"))


def _spread_evenly(size: int, count: int) -> Tensor:
    """Return at most so many positions from the first to the last."""
    return torch.linspace(0, max(size - 1, 0), min(count, size), dtype=torch.float64, device="cpu").long()


def _as_index(index: Any) -> Any:
    """Return an integer of another library as one of Python's; anything else as it is."""
    return int(index) if isinstance(index, Integral) and not isinstance(index, bool) else index


def _fits(index: object) -> bool:
    if isinstance(index, slice):
        return index.step in (None, 1) and all(isinstance(end, Integral | None) for end in (index.start, index.stop))
    return isinstance(index, int) and not isinstance(index, bool)


def _as_slice(index: Index, size: int) -> slice:
    if isinstance(index, slice):
        return index
    at = index + size if index < 0 else index
    return slice(at, at + 1)


@checked
@explain_arguments(ATTENTION)
def attention_map(
    query: Tensor,
    key: Tensor,
    *,
    score: Score = SCALED_DOT,
    normalizer: Normalizer | None = None,
    mask: Mask | Tensor | None = None,
    bias: Tensor | Bias | None = None,
    enable_gqa: bool = False,
    state: RowState | None = None,
) -> AttentionMap:
    """Return the attention weights as a lazy matrix: any tile is exact, at any length, with the fast kernels left on.

    Args:
        query: (..., Q, D).
        key: (..., K, E).
        score, normalizer, mask, bias, enable_gqa: as for `qkv.attention`.
        state: row state of a forward pass over the same queries and keys; None to compute it (one pass, linear memory).

    Returns:
        The map.

    Raises:
        QkvError: as for `qkv.attention`; also ShapeError if the state belongs to other rows.

    Example:
        >>> import qkv
        >>> query, key = torch.randn(2, 1, 100_000, 16).unbind()
        >>> amap = qkv.attention_map(query[:, :5], key)
        >>> amap.shape, amap[0, 2:4, 50_000:50_003].shape, round(float(amap.row(0).sum()), 3)
        ((1, 5, 100000), torch.Size([2, 3]), 1.0)
    """
    arguments = Arguments(score, normalizer, mask, bias, 0.0, None, enable_gqa)
    shard = ACTIVE[-1] if ACTIVE else None
    if shard is not None:
        query, key, arguments = shard.map_inputs(query, key, arguments)
    amap = map_of(*copied(query, key, arguments), None if state is None else state.map(torch.clone))
    amap._total = None if shard is None else shard.total
    return amap


def map_of(
    query: Tensor, key: Tensor, arguments: Arguments, state: RowState | None = None, *, lazily: bool = False
) -> AttentionMap:
    """Return the map of tensors that do not change while it is in use, without copies of them.

    Args:
        query, key, state: as for `attention_map`.
        arguments: its other arguments.
        lazily: whether to compute the row state when it is first needed, which for whole rows is never; gradients do
            not reach it then.

    Raises:
        QkvError: as for `attention_map`.

    Example:
        >>> query, key = torch.zeros(2, 4), torch.zeros(3, 4)
        >>> map_of(query, key, Arguments(SCALED_DOT, None, None, None, 0.0, None, False)).row(0)
        tensor([0.3333, 0.3333, 0.3333])
    """
    expect_floats("query", query)
    expect_floats("key", key)
    described = describe(query, key, values_of(key), arguments, state=True)
    described = described._replace(call=described.call.without_hidden_keys())
    hard = described.problem.normalizer == "hard"
    if state is None and described.problem.normalizer not in KNOWN:
        zeros = query.new_zeros(*described.problem.leading, described.problem.queries, dtype=torch.float64)
        return AttentionMap(described, zeros, (query, key, arguments))
    state = _in_log_space(state, described)
    if state is None or hard:
        plan = plan_for(described.problem)

        def state_of() -> Tensor:
            result = plan.run(described.call)
            assert result.state is not None
            return winners(result.output) if hard else result.state

        return AttentionMap(described, torch.no_grad()(state_of) if lazily else state_of(), (query, key, arguments))
    rows = (*described.leading, described.problem.queries)
    if state.kind != described.problem.normalizer or tuple(state.value.shape) != rows:
        got = f"{state.kind} {show(tuple(state.value.shape))}"
        hint = "Pass the state that attention_with_state returned for this query, key and normalizer."
        raise ShapeError("state", f"{described.problem.normalizer} {show(rows)}", got, hint)
    value = state.value.reshape(*described.problem.leading, described.problem.queries)
    return AttentionMap(described, value, (query, key, arguments), from_caller=True)


def _in_log_space(state: RowState | None, described: DescribedCall) -> RowState | None:
    """Return the state of a Gaussian under its sum as that of a softmax; None where it has underflowed.

    Traces of earlier versions hold the sums themselves.
    """
    gaussian = described.problem.normalizer == "softmax" and isinstance(described.call.score, SquaredDistance)
    if state is None or state.kind != "sum" or not gaussian:
        return state
    if bool((state.value < torch.finfo(state.value.dtype).tiny).any()):
        return None
    return RowState("softmax", state.value.double().log())
