"""`flex_attention`: PyTorch's signature, on the algorithms of this library."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from qkv import functional
from qkv.biases import Bias
from qkv.engine.describe import draw_seed
from qkv.engine.dropout import Kept
from qkv.errors import DtypeError, UnsupportedError
from qkv.hub.flex import arguments, reads, tiles
from qkv.hub.flex.biases import bias_of
from qkv.hub.flex.conditions import conjuncts, joined, mask_of, per_row
from qkv.hub.flex.expressions import Expression, constant, evaluate, number, operation
from qkv.hub.flex.modification import Modification, modification
from qkv.hub.flex.symbols import MASK_ARGUMENTS, SCORE_ARGUMENTS, UntraceableError, traced
from qkv.masks.base import Grid, Mask
from qkv.scores.products import ScaledDot
from qkv.values.checked import checked

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import AuxOutput, AuxRequest, BlockMask

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
_EXACT = 1 << 24
"""Up to here float32 holds every position."""


@checked
def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: ScoreMod | None = None,
    block_mask: "BlockMask | MaskMod | None" = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Mapping[str, Any] | None = None,
    *,
    return_aux: "AuxRequest | None" = None,
    dropout: float = 0.0,
    generator: torch.Generator | None = None,
    post_mod: ScoreMod | None = None,
    backend: str = "auto",
) -> "Tensor | tuple[Tensor, Tensor] | tuple[Tensor, AuxOutput]":
    """Compute what `torch.nn.attention.flex_attention` does, eagerly, in linear memory, with gradients on the CPU.

    `score_mod` is traced: if it is a scale, a soft cap, a bias or a mask, in any spelling, the algorithms of
    `qkv.attention` compute it; any other function is called on tiles. Gradients reach the tensors that it closes over.

    Args:
        query: (B, H, Q, D).
        key: (B, G, K, D); B may be 1 with a block mask for the queries' batch.
        value: (B, G, K, V).
        score_mod: (score, batch, head, query index, key index) -> score, called with scalars.
        block_mask: of `torch.nn.attention.flex_attention`; or its `mask_mod` alone, which needs no matrix to be made.
            As in PyTorch without compilation, `mask_mod` alone decides which pairs are visible.
        scale: of the dot products; None for 1/√D.
        enable_gqa: query has H heads, key and value have G, where G divides H.
        return_lse: whether to return log Σ e^s of each row too, (B, H, Q).
        kernel_options: checked and ignored; they concern PyTorch's kernels.
        return_aux: which of `lse` and `max_scores` to return as an `AuxOutput`.
        dropout: the probability with which a weight is dropped; the others are divided by 1 − dropout.
        generator: draws the seed of dropout; None for PyTorch's own.
        post_mod: (weight, batch, head, query index, key index) -> weight, applied to the softmax's weights before
            dropout; weights of hidden pairs stay 0.
        backend: as `qkv.attention`.

    Returns:
        The output (B, H, Q, V). With `return_lse` also log Σ e^s; with `return_aux` also an `AuxOutput`. A row that
        may see nothing has output 0 and −∞.

    Raises:
        ShapeError: sizes do not fit together, or with those of the block mask.
        DtypeError: a tensor is on another device, or has no floating-point dtype.
        MaskError: `block_mask` is not a block mask, or was sliced and has no `mask_mod` of its own.
        ArgumentError: a function, the scale or a table of options is of another kind.
        ConfigError: dropout or a kernel option is outside its range.
        UnsupportedError: inputs that are not four-dimensional; a backend that cannot serve the functions.

    Source: Dong et al. 2024, "Flex Attention: A Programming Model for Generating Optimized Attention Kernels".

    Example:
        >>> query, key, value = torch.randn(3, 1, 2, 16, 8, requires_grad=True).unbind()
        >>> slopes = torch.tensor([0.5, 0.25], requires_grad=True)
        >>> def alibi(score, b, h, i, j):
        ...     return torch.where(i >= j, score + slopes[h] * (j - i), -float("inf"))
        >>> flex_attention(query, key, value, score_mod=alibi).sum().backward()
        >>> slopes.grad.shape
        torch.Size([2])
    """
    arguments.check_functions(score_mod, post_mod, kernel_options, return_aux)
    arguments.check_scale(scale)
    arguments.check(query, key, value, block_mask, enable_gqa, kernel_options, return_lse and return_aux is not None)
    with_largest = return_aux is not None and return_aux.max_scores
    outputs = _Outputs(return_lse or with_largest or (return_aux is not None and return_aux.lse), with_largest)
    query, key, value = arguments.one_dtype(query, key, value)
    scale = query.shape[-1] ** -0.5 if scale is None and query.shape[-1] else scale
    grid = Grid.of(query, key)
    options = _Options(1.0 if scale is None else scale, enable_gqa, dropout, generator, backend)
    if torch.compiler.is_compiling():
        # PyTorch's compiler traces the functions itself.
        functions = _Functions(score_mod, None, arguments.mask_mod(block_mask), None, None)
        return _returned(
            *_tiles(query, key, value, functions, post_mod, options, outputs), query, return_lse, return_aux
        )
    functions = _functions(score_mod, arguments.mask_mod(block_mask), query, grid)
    largest: Tensor | None = None
    if 0 in (*query.shape[:3], key.shape[2]):
        # No pair to call a function for.
        output, lse = _attention(query, key, value, Fast(1.0, None, None, None), options, outputs)
        largest = lse
    elif not post_mod and not outputs.largest and (fast := functions.fast(grid)) is not None:
        output, lse = _attention(query, key, value, fast, options, outputs)
    else:
        output, lse, largest = _tiles(query, key, value, functions, post_mod, options, outputs)
    return _returned(output, lse, largest, query, return_lse, return_aux)


def _returned(
    output: Tensor,
    lse: Tensor | None,
    largest: Tensor | None,
    query: Tensor,
    return_lse: bool,
    return_aux: "AuxRequest | None",
) -> "Tensor | tuple[Tensor, Tensor] | tuple[Tensor, AuxOutput]":
    """Return what PyTorch's function returns, as it lays it out."""
    output = arguments.laid_out_like(output, query)
    # PyTorch's own function returns them in this type.
    wide = torch.promote_types(query.dtype, torch.float32)
    lse, largest = (None if x is None else x.to(wide) for x in (lse, largest))
    if return_aux is not None:
        from torch.nn.attention.flex_attention import AuxOutput

        return output, AuxOutput(lse if return_aux.lse else None, largest if return_aux.max_scores else None)
    return (output, lse) if return_lse and lse is not None else output


class _Outputs(NamedTuple):
    """Which results per row are requested besides the output."""

    lse: bool
    largest: bool


class _Options(NamedTuple):
    """The arguments that are not functions of pairs."""

    scale: float
    enable_gqa: bool
    dropout: float
    generator: torch.Generator | None
    backend: str


class Fast(NamedTuple):
    """Score and mask functions in the terms of `qkv.attention`.

    Attributes:
        scale: multiplies the scaled products; a number, or one per head.
        cap: the soft cap; None for none.
        bias: what is added; None for nothing.
        mask: which pairs are visible; None for all.
    """

    scale: float | Tensor
    cap: float | None
    bias: Tensor | Bias | None
    mask: Mask | None


def plan(score_mod: ScoreMod | None, mask_mod: MaskMod | None, query: Tensor, grid: Grid) -> Fast | None:
    """Return how `flex_attention` computes these functions: in the terms of `qkv.attention`; None if on tiles.

    Args:
        score_mod, mask_mod: as `flex_attention` takes them.
        query: (B, H, Q, D).
        grid: the sizes; leading is (B, H).

    Example:
        >>> query = torch.zeros(1, 2, 5, 4)
        >>> grid = Grid((1, 2), 5, 5, query.device)
        >>> plan(lambda score, b, h, i, j: 30 * torch.tanh(score / 30), lambda b, h, i, j: i >= j, query, grid)
        Fast(scale=1.0, cap=30.0, bias=None, mask=Causal(offset=0, align='start'))
        >>> plan(lambda score, b, h, i, j: score * score, None, query, grid) is None
        True
    """
    return _functions(score_mod, mask_mod, query, grid).fast(grid)


class _Functions(NamedTuple):
    """The functions of a call, traced if they can be.

    Attributes:
        score: the score function; None for none.
        score_expression: what it computes; None if it cannot be traced.
        mask: the mask function; None for none.
        mask_expression: what it computes; None if it cannot be traced.
        change: the score function as a modification, if it is one.
    """

    score: ScoreMod | None
    score_expression: Expression | None
    mask: MaskMod | None
    mask_expression: Expression | None
    change: Modification | None

    def fast(self, grid: Grid) -> Fast | None:
        """Return the functions as arguments of `qkv.attention`, or None if they are not of that form."""
        if self.change is None:
            return None
        shape = _shape(self.change, grid)
        if shape is None:
            return None
        mask = self.visible(grid, self.change.visible)
        reads.check([self.change.scale, *(x for _, x in self.change.biases)], mask, grid)
        return Fast(*shape, bias_of(self.change.biases, grid), mask)

    def visible(self, grid: Grid, condition: Expression | None = None) -> Mask | None:
        """Return the mask: what the mask function and a condition of the score function let a query see."""
        if self.mask is not None and self.mask_expression is None:
            mask = None if condition is None else mask_of(condition, grid)
            user: Mask = tiles.UserMask(self.mask)
            return user if mask is None else mask & user
        both = self.mask_expression
        if condition is not None:
            both = condition if both is None else operation("and", condition, both, dtype=torch.bool)
        if both is None:
            return None
        both = reads.guarded(both, grid)
        pieces = conjuncts(both)
        others = [x for x in pieces if not reads.reads_of([x])]
        if len(others) < len(pieces):
            hiding = None if not others else mask_of(joined(others), grid)
            reads.check(pieces, hiding, grid)
        return mask_of(both, grid)


def _functions(score_mod: ScoreMod | None, mask_mod: MaskMod | None, query: Tensor, grid: Grid) -> _Functions:
    kind = torch.promote_types(query.dtype, torch.float32)
    small = max(grid.queries, grid.keys) < _EXACT and 0 not in (*grid.leading, grid.queries, grid.keys)

    def expression(function: Callable[..., Tensor] | None, names: tuple[str, ...]) -> Expression | None:
        if function is None or not small:
            return None
        try:
            return traced(function, names, kind, grid.device)
        except UntraceableError:
            return None

    score, mask = expression(score_mod, SCORE_ARGUMENTS), expression(mask_mod, MASK_ARGUMENTS)
    if score is not None and score.dtype.is_complex:
        raise DtypeError("score_mod", "real scores", f"{score.dtype}", "Return .real or .abs().")
    if mask is not None and mask.dtype != torch.bool:
        mask = operation("ne", mask, number(0), dtype=torch.bool)
    if score_mod is None:
        change: Modification | None = Modification(number(1.0))
    else:
        change = None if score is None else modification(score)
    if small:
        score = None if score is None else reads.guarded(score, grid)
        change = None if change is None else _guarded(change, grid)
    return _Functions(score_mod, score, mask_mod, mask, change)


def _guarded(change: Modification, grid: Grid) -> Modification:
    """Let a modification read 0 beyond the end of a table."""
    biases = tuple((sign, reads.guarded(x, grid)) for sign, x in change.biases)
    return replace(change, scale=reads.guarded(change.scale, grid), biases=biases)


def _shape(change: Modification, grid: Grid) -> tuple[float | Tensor, float | None] | None:
    """Return factor and soft cap of the scores; None for a factor that is neither a number nor one per head."""
    factor = constant(change.scale)
    if change.rate is not None:
        # cap·tanh(rate·s), whose two signs cancel.
        if factor is None or factor == 0:
            return None
        return change.rate * factor, abs(float(factor))
    if factor is not None:
        return float(factor), None
    if change.scale.symbols <= {"head"}:
        per_head = per_row(change.scale, grid)
        return per_head.squeeze(-1) if per_head.ndim > 1 else per_head.squeeze(), None
    return None


def _attention(
    query: Tensor, key: Tensor, value: Tensor, fast: Fast, options: _Options, outputs: _Outputs
) -> tuple[Tensor, Tensor | None]:
    score = ScaledDot(scale=fast.scale * options.scale, softcap=fast.cap)
    options_by_name: dict[str, Any] = {
        "score": score,
        "mask": fast.mask,
        "bias": fast.bias,
        "dropout": options.dropout,
        "generator": options.generator,
        "enable_gqa": options.enable_gqa,
        "backend": options.backend,
    }
    if not outputs.lse:
        return functional.attention(query, key, value, **options_by_name), None
    output, state = functional.attention_with_state(query, key, value, **options_by_name)
    # As PyTorch returns it.
    return output, state.lse.to(torch.promote_types(query.dtype, torch.float32))


def _tiles(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    functions: _Functions,
    post_mod: ScoreMod | None,
    options: _Options,
    outputs: _Outputs,
) -> tiles.Results:
    if options.backend not in ("auto", "blocked", "reference"):
        hint = "Functions that are called on tiles are served by backend='blocked' or 'reference'."
        got = f"{options.backend!r} for a function that is no scale, soft cap, bias or mask"
        raise UnsupportedError("backend", "'auto', 'blocked' or 'reference'", got, hint)
    grid = Grid.of(query, key)
    mask = functions.visible(grid)
    if functions.score_expression is not None:
        reads.check([functions.score_expression], mask, grid, functions.score_expression)
    heads = query.shape[1] // max(1, key.shape[1])
    key, value = (x.repeat_interleave(heads, 1) if heads > 1 else x for x in (key, value))
    seed = draw_seed(options.dropout, options.generator, query.device)
    pairs = tiles.Pairs(
        options.scale,
        _on_tile(functions.score, functions.score_expression),
        None if post_mod is None else tiles.by_pair(post_mod, True),
        mask,
        None if seed is None else Kept(seed, grid.leading, grid.queries, grid.keys, options.dropout),
        options.backend == "reference",
        outputs.lse,
        outputs.largest,
    )
    attend = tiles.traced if torch.compiler.is_compiling() else tiles.attend
    return attend(query, key, value, pairs)


def _on_tile(function: ScoreMod | None, expression: Expression | None) -> tiles.OnTile | None:
    if function is None:
        return None
    if expression is None:
        return tiles.by_pair(function, True)
    return lambda score, indices: evaluate(expression, {**indices, "score": score})
