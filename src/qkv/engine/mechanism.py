"""The mechanism and the tensors of a problem, in the layout that tiles use."""

from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from qkv.engine.position_bias import PositionBias
from qkv.engine.problem import Call, Problem
from qkv.engine.ties import first_equals
from qkv.normalizers.base import Normalizer
from qkv.normalizers.dense import Hard, Sigmoid, Softmax
from qkv.normalizers.sparse import Entmax
from qkv.scores.pointwise import Pointwise
from qkv.shapes import Shape


@final
@dataclass(frozen=True)
class Mechanism:
    """An attention mechanism on prepared operands, without tensors.

    Attributes:
        core: the function on pairs of query and key.
        pointwise: the function of one number that follows the core.
        normalizer: a key of `row_rules.RULES`.
        factor: multiplies the core's result if there is no scale tensor.
        dropout: the probability of dropping a weight.
        state: whether the row state is requested.
        leading: the leading shape.
    """

    core: str
    pointwise: Pointwise
    normalizer: str
    factor: float
    dropout: float
    state: bool
    leading: Shape


class Inputs(NamedTuple):
    """The tensors, each with as many leading dimensions as the problem; those of size 1 broadcast.

    Attributes:
        query: (..., Q, F), expanded to all leading dimensions.
        key, value: (..., K, F), (..., K, V).
        scale: (..., 1, 1).
        vector: (..., F), of `tanh_sum`.
        parameter: sink, alpha or bias of the normalizer, (..., 1, 1); a float64 scalar for a number.
        bias: (..., Q or 1, K or 1).
        diagonals: (..., Q + K − 1), the relative bias of each j − i from 1 − Q to K − 1.
        seed: int64 scalar, the seed of dropout.
        ties: int64 (..., K), for each key the first one that equals it, under `Hard`; None if no two are equal.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    scale: Tensor | None
    vector: Tensor | None
    parameter: Tensor | None
    bias: Tensor | None
    diagonals: Tensor | None
    seed: Tensor | None
    ties: Tensor | None = None

    @property
    def biased(self) -> bool:
        """True if a bias tensor or diagonals are added to the scores."""
        return self.bias is not None or self.diagonals is not None

    def cast(self, dtype: torch.dtype) -> "Inputs":
        """Return the tensors in another dtype. A scalar stays float64: it promotes none that it is combined with."""
        cast = (None if x is None else x.to(dtype) if x.ndim else x for x in self[:DIFFERENTIABLE])
        return Inputs(*cast, self.seed, self.ties)  # type: ignore[arg-type, call-arg]


class Gradients(NamedTuple):
    """Buffers in which gradients of the differentiable inputs are summed; None where a gradient is not requested."""

    query: Tensor | None
    key: Tensor | None
    value: Tensor | None
    scale: Tensor | None
    vector: Tensor | None
    parameter: Tensor | None
    bias: Tensor | None
    diagonals: Tensor | None


DIFFERENTIABLE = len(Gradients._fields)
"""How many of the inputs, counted from the first, may have gradients."""


def zero_gradients(inputs: Inputs, needed: list[bool]) -> Gradients:
    """Allocate zeros for the requested gradients.

    They are column-major, in which products with weights accumulate fastest; a bias is row-major, as its tiles are.
    """
    pairs = zip(inputs[:DIFFERENTIABLE], needed, strict=True)
    buffers = (
        _zeros(x, columns=x is not inputs.bias and x is not inputs.diagonals) if x is not None and want else None
        for x, want in pairs
    )
    return Gradients(*buffers)


def row_major(buffers: list[Tensor | None]) -> list[Tensor | None]:
    """Return gradients in row-major order, and empty the list: only one of them exists twice at any time."""
    buffers.reverse()
    return [None if (buffer := buffers.pop()) is None else buffer.contiguous() for _ in range(len(buffers))]


def _zeros(x: Tensor, columns: bool) -> Tensor:
    if columns and x.ndim > 1:
        return torch.zeros(x.mT.shape, dtype=x.dtype, device=x.device).mT
    return torch.zeros(x.shape, dtype=x.dtype, device=x.device)


def full_rank(x: Tensor, rank: int) -> Tensor:
    """Return a view of rank `rank`, with leading dimensions of size 1 added."""
    return x if x.ndim == rank else x.reshape(*(1,) * (rank - x.ndim), *x.shape)


def prepare_inputs(problem: Problem, call: Call) -> tuple[Mechanism, Inputs]:
    """Return the mechanism, and its tensors with all leading dimensions.

    Only views are made, so that autograd sums the gradients of tensors that broadcast. A relative bias is given by its
    diagonals; any other position bias is evaluated tile by tile and is not among the inputs.
    """
    operands = call.score.prepare(call.query, call.key)
    leading = problem.leading
    rank = len(leading)
    scale = operands.scale if isinstance(operands.scale, Tensor) else None
    query = operands.query
    name, parameter = normalizer_parts(call.normalizer)
    if isinstance(parameter, Tensor):
        parameter = full_rank(parameter[..., None, None], rank + 2)
    elif parameter is not None:
        # Entmax reads its number, which stays on the host; a copy of any other one to a GPU would wait for it.
        parameter = (
            torch.tensor(parameter, dtype=torch.float64, device="cpu")
            if name == "entmax"
            else torch.full((), parameter, dtype=torch.float64, device=query.device)
        )
    inputs = Inputs(
        query.expand(*leading, *query.shape[-2:]),
        full_rank(operands.key, rank + 2),
        full_rank(call.value, rank + 2),
        None if scale is None else full_rank(scale, rank + 2),
        None if operands.vector is None else full_rank(operands.vector, rank + 1),
        parameter,
        full_rank(call.bias, rank + 2) if isinstance(call.bias, Tensor) else None,
        _diagonals(call, rank),
        call.seed,
        _ties(call, rank),
    )
    factor = 1.0 if isinstance(operands.scale, Tensor) else operands.scale
    return Mechanism(problem.core, problem.pointwise, name, factor, call.dropout, problem.state, leading), inputs


def _ties(call: Call, rank: int) -> Tensor | None:
    # By the keys themselves: projections of equal keys can differ in their last bits too.
    ties = first_equals(call.key) if isinstance(call.normalizer, Hard) else None
    return None if ties is None else full_rank(ties, rank + 1)


def _diagonals(call: Call, rank: int) -> Tensor | None:
    relative = isinstance(call.bias, PositionBias) and call.bias.bias.relative
    return full_rank(call.bias.diagonals(), rank + 1) if relative else None  # type: ignore[union-attr]


def normalizer_parts(normalizer: Normalizer) -> tuple[str, float | Tensor | None]:
    """Return the name of a normalizer's rule and its parameter, None if it has none."""
    name = type(normalizer).__name__.lower()
    match normalizer:
        case Softmax(parameter) | Sigmoid(parameter):
            return name, parameter
        case Entmax(alpha):
            return ("entmax15", None) if not isinstance(alpha, Tensor) and alpha == 1.5 else (name, alpha)
        case _:
            return name, None
