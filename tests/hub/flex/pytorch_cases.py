"""The cases of PyTorch's own tests of flex_attention that concern results, with our sizes.

Names and meanings follow test/inductor/test_flex_attention.py of pytorch/pytorch at commit
00125ef3dad64a9f8dd8768e81326a34ed7ba91d: test name, then parameters. Left out are tests of the compiler (graphs, code,
recompilation, autotuning, its error messages), of BlockMask's own attributes, of several GPUs, and those expected to
fail. Cases that differ in the compiler's mode alone are one. Paged attention appears as what it passes: a mask and a
score function that look positions up in tables.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, and_masks, create_block_mask, noop_mask, or_masks

B, H, S, D = 2, 4, 96, 16
INFINITY = float("inf")
Function = Callable[..., Tensor]


@dataclass
class Case:
    """A call of flex_attention.

    Attributes:
        name: frozen in pytorch_cases.txt.
        score: the score function.
        mask: the mask function; None for no block mask.
        query, key: (B, H, N, D); value has `width` instead of D.
        dtype: of the inputs.
        learned: captured tensors whose gradients are compared.
        block: the block mask, if it is not made from the mask function by default.
        inputs: makes other inputs than random ones.
        same: the same function in a spelling whose gradient PyTorch computes; None where it does.
    """

    name: str
    score: Function | None = None
    mask: Function | None = None
    query: tuple[int, ...] = (B, H, S, D)
    key: tuple[int, ...] = (B, H, S, D)
    width: int = D
    dtype: torch.dtype = torch.float32
    learned: list[Tensor] = field(default_factory=list)
    block: Callable[[], BlockMask] | None = None
    inputs: Callable[[], list[Tensor]] | None = None
    same: Function | None = None

    def block_mask(self) -> BlockMask | None:
        """Make the block mask."""
        if self.block is not None:
            return self.block()
        if self.mask is None:
            return None
        return create_block_mask(self.mask, self.query[0], None, self.query[2], self.key[2], device="cpu")

    def tensors(self) -> list[Tensor]:
        """Make query, key and value."""
        if self.inputs is not None:
            return self.inputs()
        shapes = (self.query, self.key, (*self.key[:3], self.width))
        return [torch.randn(shape, dtype=self.dtype) for shape in shapes]


def causal(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return torch.where(i >= j, s, -INFINITY)


def inverse_causal(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return torch.where(i <= j, s, -INFINITY)


def distance(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return s + (i - j)


def distance_causal(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return torch.where(i >= j, s + (i - j), -INFINITY)


def alibi(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return s + (j - i) * torch.exp2(-((h + 1) * 8.0 / 8))


def sees_causal(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return i >= j


def sees_inverse(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return i <= j


BUILTIN: dict[str, tuple[Function, Function]] = {
    "identity": (lambda s, b, h, i, j: s, noop_mask),
    "times_two": (lambda s, b, h, i, j: s * 2, noop_mask),
    "squared": (lambda s, b, h, i, j: s * s, noop_mask),
    "causal": (causal, sees_causal),
    "inverse_causal": (inverse_causal, sees_inverse),
    "rel_bias": (distance, noop_mask),
    "rel_causal": (distance_causal, sees_causal),
    "alibi_bias": (alibi, noop_mask),
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def all_cases() -> Iterator[Case]:
    """Iterate over all cases; each call draws new captured tensors."""
    yield from _builtin()
    yield from _shapes()
    yield from _captured()
    yield from _masks()
    yield from _learnable()


def _builtin() -> Iterator[Case]:
    for name, (score, mask) in BUILTIN.items():
        for kind, dtype in DTYPES.items():
            yield Case(f"test_builtin_score_mods {name} {kind}", score, dtype=dtype)
            for query, value in ((D, D // 2), (D // 2, D)):
                sizes = (B, H, S, query)
                label = f"test_non_equal_head_dims {name} {kind} {query} {value}"
                yield Case(label, score, None, sizes, sizes, value, dtype)
            for block in (32, 64, (32, 64), (64, 32)):
                made = partial(create_block_mask, noop_mask, B, H, S, S, device="cpu", BLOCK_SIZE=block)
                label = f"test_builtin_score_mods_different_block_size {name} {kind} {block}"
                yield Case(label, score, noop_mask, dtype=dtype, block=made)
        short = (B, H, 24, D)
        yield Case(f"test_builtin_score_mods_seqlen_lt_default_sparse_block_size {name}", score, None, short, short)
        yield Case(
            f"test_builtin_score_mods_seqlen_lt_custom_sparse_block_size {name}", score, sees_causal, short, short
        )
        for times in (1, 2, 4):
            sizes = (B * times, H, S // times, D)
            yield Case(f"test_builtin_score_mods_dynamic {name} {times}", score, mask, sizes, sizes)
            yield Case(f"test_builtin_score_mods_automatic_dynamic {name} {times}", score, noop_mask, sizes, sizes)
        half = (B, H, S // 2, D)
        yield Case(f"test_builtin_score_mods_different_seqlen {name}", score, None, half)
        yield Case(f"test_GQA {name}", score, None, (B, H * 4, S // 8, D))
        for batch in (3, 4, 5):
            for heads in (2, 1):
                query, key = (batch, 4, S, D), (1, heads, S, D)
                yield Case(f"test_kv_batch_broadcast {name} {batch} {heads}", score, noop_mask, query, key)
                label = f"test_kv_batch_broadcast_causal_mask {name} {batch} {heads}"
                yield Case(label, score, sees_causal, query, key)


STRIDES = (
    ((H * S * D, S * D, D, 1), 997),
    ((H * D, D, B * H * D, 1), 499),
    ((H * S * D, D, H * D, 1), 0),
    ((S * (D + 1), B * S * (D + 1), (D + 1), 1), 293),
)


def _strided(queries: int, key: int, value: int) -> list[Tensor]:
    shapes = ((B, H, S // 2, D), (B, H, S, D), (B, H, S, D))
    return [
        torch.as_strided(torch.randn(B * H * S * D * 2), shape, *STRIDES[which])
        for shape, which in zip(shapes, (queries, key, value), strict=True)
    ]


def _permuted(shape: tuple[int, ...], order: tuple[int, ...]) -> list[Tensor]:
    return [torch.randn(shape).permute(order) for _ in range(3)]


def _shapes() -> Iterator[Case]:
    half = (B, H, S // 2, D)
    for query in (0, 1):
        for key, value in ((0, 0), (0, 1), (2, 3), (3, 1)):
            made = partial(_strided, query, key, value)
            yield Case(f"test_strided_inputs {query} {key} {value}", alibi, None, half, inputs=made)
    for order in ((0, 1, 2, 3), (1, 0, 2, 3), (0, 2, 1, 3), (2, 0, 1, 3)):
        for shape in ((2, 1, 128, 16), (4, 2, 64, 16)):
            made = partial(_permuted, shape, order)
            sizes = tuple(shape[i] for i in order)
            yield Case(f"test_flex_attention_stride_ordering {order} {shape}", None, None, sizes, sizes, inputs=made)
    one = (1, 1, 1, 16)
    yield Case("test_small_q_kv_len", None, None, one, one, 16)
    wide = (B, H, 128, 128)
    yield Case("test_num_warps_8_error", BUILTIN["identity"][0], None, wide, wide, 128)
    yield Case("test_force_write_lse", None, None)
    yield Case("test_logsumexp_only_return", BUILTIN["identity"][0])
    for name in ("identity", "causal"):
        for kind, dtype in DTYPES.items():
            yield Case(f"test_logsumexp_correctness {name} {kind}", BUILTIN[name][0], dtype=dtype)
    gqa = (1, 4, 64, 16)
    yield Case("test_eager_tracing_correctness", None, None, gqa, (1, 2, 64, 16), 32)
    yield Case("test_float32_matmul_precision", BUILTIN["times_two"][0])
    yield Case("test_max_autotune", BUILTIN["times_two"][0])
    yield Case("test_eager_backward_strides", None, inputs=_projected)


def _projected() -> list[Tensor]:
    x = torch.randn(B, S, 3 * H * D)
    return [part.reshape(B, S, H, D).transpose(1, 2) for part in x.split(H * D, 2)]


def _captured() -> Iterator[Case]:
    tokens, batches, heads = torch.randn(S), torch.randn(B), torch.randn(H)
    for kind, dtype in DTYPES.items():
        yield Case(
            f"test_skip_odd_keys {kind}", lambda s, b, h, i, j: torch.where(j % 2 == 0, s, -INFINITY), dtype=dtype
        )
        yield Case(
            f"test_function_composition {kind}",
            lambda s, b, h, i, j: inverse_causal(distance(s, b, h, i, j), b, h, i, j),
            dtype=dtype,
        )
        yield Case(
            f"test_captured_buffers_all_dims {kind}",
            lambda s, b, h, i, j: s + tokens[i] + batches[b] + heads[h],
            dtype=dtype,
        )
        starts = torch.tensor([0, 48, 72, S], dtype=torch.int32)
        of = torch.bucketize(torch.arange(S), starts, right=True) - 1
        yield Case(
            f"test_njt_causal {kind}",
            lambda s, b, h, i, j, at=starts, of=of: causal(s, b, h, i - at[of[i]], j - at[of[j]]),
            dtype=dtype,
        )
    yield Case("test_max_autotune_with_captured", lambda s, b, h, i, j: s + tokens[i] + batches[b] + heads[h])
    ids = torch.arange(S) // 24
    yield Case("test_doc_mask_sparse", lambda s, b, h, i, j: torch.where((i >= j) & (ids[i] == ids[j]), s, -INFINITY))
    per_batch, four, last = torch.randn(B, S), torch.randn(4, B, H, S), torch.randn(B, H, 4, S)
    which = torch.tensor(0)
    yield Case("test_index_multiple", lambda s, b, h, i, j: s + per_batch[b][i])
    yield Case("test_index_weird1", lambda s, b, h, i, j: s + four[0][b, h][i])
    yield Case("test_index_weird2", lambda s, b, h, i, j: s + last[b][h][which, i])
    halves = torch.arange(S) >= S // 2
    yield Case("test_seq_masking", lambda s, b, h, i, j: torch.where(halves[i] == halves[j], s, -INFINITY))
    matrix, batch_matrix, whole = torch.randn(S, S), torch.randn(B, S, S), torch.randn(B, H, S, S)
    yield Case("test_load_from_bias_seq_only", lambda s, b, h, i, j: s + matrix[i, j])
    yield Case("test_load_from_bias_seq_batch", lambda s, b, h, i, j: s + batch_matrix[b, i, j])
    yield Case("test_load_from_bias_head_seq_batch", lambda s, b, h, i, j: s + whole[b, h, i, j])
    doubled = 2 * whole
    yield Case("test_modular_indexing", lambda s, b, h, i, j: s + doubled[b, h, i, j])
    view = torch.randn(B, H, S, S // 8)
    yield Case("test_load_from_view_buffer", lambda s, b, h, i, j: s + view[b, h, i, j // 8])
    table = torch.randn(2 * S)
    yield Case("test_load_rel_bias", lambda s, b, h, i, j: s + table[(i - j) + S])
    ahead = torch.randint(0, S, (B,), dtype=torch.int32)
    yield Case(
        "test_dependent_causal_bidirectional",
        lambda s, b, h, i, j: torch.where(((i <= ahead[b]) & (j <= ahead[b])) | (i >= j), s, -INFINITY),
    )
    yield Case("test_natten_2d", _natten)
    yield Case("test_subgraph_respect_decompostion", lambda s, b, h, i, j: s - i // (1 + j), dtype=torch.float64)
    yield Case("test_silu_on_score", lambda s, b, h, i, j: torch.nn.functional.silu(s))
    lengths = torch.arange(B, dtype=torch.int32) + 1
    yield Case(
        "test_padded_dense_causal",
        lambda s, b, h, i, j: torch.where(s <= lengths[b], causal(s, b, h, i, j), -INFINITY),
    )
    scale = torch.ones((), dtype=torch.int32)
    yield Case("test_captured_scale", lambda s, b, h, i, j: s + scale)
    yield Case("test_recompile_changed_score_mod add", lambda s, b, h, i, j: s + scale)
    yield Case("test_recompile_changed_score_mod multiply", lambda s, b, h, i, j: s * scale)
    rows = torch.randn(B, 8)
    yield Case("test_captured_reduction", lambda s, b, h, i, j: s + rows[b].sum(dim=-1))
    yield Case("test_inputs_are_realized", lambda s, b, h, i, j: s + tokens[i])
    yield Case("test_symbol_closure_in_score_mod", lambda s, b, h, i, j: s + B)
    means, spans = torch.randn(S, 3), torch.logspace(0.001, 0.1, H)
    yield Case("test_reduction_unrolled", lambda s, b, h, i, j: _near(means, i, j, spans[h]) * s)
    factor = torch.randn(S + 3, dtype=torch.bfloat16)
    longer = (B, H, S + 3, D)
    yield Case("test_non_divisible_with_captured_buffer", lambda s, b, h, i, j: s * factor[i], None, longer, longer)
    own, other = torch.randn(S - 3, dtype=torch.bfloat16), torch.randn(S - 3, dtype=torch.bfloat16)
    shorter = (B, H, S - 3, D)
    yield Case(
        "test_causal_block_non_divisible_with_captured_buffer",
        lambda s, b, h, i, j: s + own[i] + other[j],
        sees_causal,
        shorter,
        shorter,
    )
    yield Case("test_autograd_function_in_score_mod", lambda s, b, h, i, j: ApplyMask.apply(s, i <= j))


def _natten(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    near = ((i / 12 - j / 12).abs() <= 3) | ((i % 12 - j % 12).abs() <= 3)
    return torch.where(near, s, -INFINITY)


def _near(means: Tensor, i: Tensor, j: Tensor, span: Tensor) -> Tensor:
    # Not the norm, whose derivative at 0 is NaN.
    return torch.exp(-(means[i] - means[j]).pow(2).sum(-1) / span)


class ApplyMask(torch.autograd.Function):
    """A function with its own derivative, which passes through masked scores."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, mask: Tensor) -> Tensor:
        return torch.where(mask, a, -INFINITY)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g, None


def _masks() -> Iterator[Case]:
    yield Case("test_causal_block", None, sees_causal)
    yield Case("test_comparison_vs_sdpa score", causal)
    yield Case("test_comparison_vs_sdpa score and mask", causal, sees_causal)
    yield Case("test_comparison_vs_sdpa mask", None, sees_causal)
    yield Case("test_no_q_info", None, sees_causal, block=_without_queries)
    yield Case("test_custom_block_mask_generator", None, sees_causal, block=_from_blocks)
    yield Case("test_GQA_causal_mask", None, sees_causal, (B, H * 4, S // 8, D), (B, H, S // 8, D))
    odd = (B, H, S - 1, D)
    yield Case("test_causal_block_non_divisible", None, sees_causal, odd, odd)
    ids = torch.arange(S - 1) // 16
    yield Case("test_block_mask_non_divisible", None, lambda b, h, i, j: ids[i] == ids[j], odd, odd)
    yield Case("test_mask_mod_combiners and", None, and_masks(sees_causal, lambda b, h, i, j: (i - j) <= 20))
    yield Case("test_mask_mod_combiners none", None, and_masks(sees_causal, lambda b, h, i, j: i < j))
    yield Case("test_mask_mod_combiners or", None, or_masks(sees_causal, lambda b, h, i, j: i < j))
    yield Case("test_multiple_mask_calls", None, lambda b, h, i, j: (i >= j) & (i <= j + 32))
    yield Case("test_lse_masked_output local", None, lambda b, h, i, j: (i >= j) & (i - j <= 20))
    yield Case("test_lse_masked_output global", None, lambda b, h, i, j: (i >= j) & (i - j > 20))
    yield Case("test_fully_masked_out_rows_0_check", None, lambda b, h, i, j: i < S // 2)
    yield Case("test_fully_masked_out_rows", BUILTIN["identity"][0], lambda b, h, i, j: i < S // 2)
    two = torch.zeros(B, S, dtype=torch.int32)
    two[:, S // 2 :] = 1
    yield Case("test_document_masking_edge_case", None, lambda b, h, i, j: two[b, i] == two[b, j])
    lengths = torch.randint(0, S, (B,))
    yield Case("test_dynamic_shapes_bug_dynamic_batch", None, lambda b, h, i, j: (i < lengths[b]) & (j < lengths[b]))
    yield Case("test_fw_bw_graph_correctness", BUILTIN["squared"][0], sees_causal, dtype=torch.float64)
    drawn = torch.randint(0, 2, (B, S)).bool()
    yield Case("test_free_symbol_dynamic", None, lambda b, h, i, j: ~drawn[b, i])
    lower = torch.ones(B, 1, S, S, dtype=torch.bool).tril()
    yield Case(
        "test_new_empty_mask_mod",
        lambda s, b, h, i, j: s + lower[b, h.new_zeros(h.shape), i, j],
        lambda b, h, i, j: lower[b, h.new_zeros(h.shape), i, j],
    )
    documents = torch.tensor([0] * 11 + [1] * 40 + [2] * 5 + [3] * 40)
    yield Case(
        "test_doc_mask_clamped_repro",
        None,
        lambda b, h, i, j: documents[i.clamp(0, S - 1)] == documents[j.clamp(0, S - 1)],
    )
    yield Case("test_block_mask_vs_sequence_lengths", None, sees_causal)
    shifted = torch.arange(B) * 16
    yield Case("test_block_mask_attributes", None, lambda b, h, i, j: (i + shifted[b]) >= j)
    for name, (score, _) in BUILTIN.items():
        yield _paged(name, score)


def _without_queries() -> BlockMask:
    made = create_block_mask(sees_causal, 1, 1, S, S, device="cpu")
    made.q_num_blocks = made.q_indices = made.full_q_num_blocks = made.full_q_indices = None
    return made


def _from_blocks() -> BlockMask:
    count = S // 32
    indices = torch.arange(count, dtype=torch.int32).expand(1, 1, count, count)
    numbers = torch.arange(1, count + 1, dtype=torch.int32)[None, None]
    return BlockMask.from_kv_blocks(numbers, indices.contiguous(), BLOCK_SIZE=32, mask_mod=sees_causal)


def _paged(name: str, score: Function) -> Case:
    """A cache of pages in any order, one for the whole batch; a position counts where its page lies."""
    pages = torch.randperm(2 * B * S // 16).view(B, -1)[:, : S // 16]
    logical = torch.full((B, 2 * B * S // 16), -1)
    logical.scatter_(1, pages, torch.arange(S // 16).expand(B, -1))

    def at(b: Tensor, j: Tensor) -> tuple[Tensor, Tensor]:
        page = logical[b, j // 16]
        return page >= 0, page * 16 + j % 16

    def scored(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        live, place = at(b, j)
        return torch.where(live, score(s, b, h, i, place), -INFINITY)

    def seen(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        live, place = at(b, j)
        return torch.where(live, i >= place, False)

    return Case(f"test_paged_builtin_score_mods {name}", scored, seen, (B, H, S, D), (1, H, 2 * B * S, D))


def _learnable() -> Iterator[Case]:
    for length in (37, 100):
        for kind, dtype in DTYPES.items():
            yield from _biases(length, kind, dtype)
    heads = torch.randn(H, requires_grad=True)
    yield Case("test_head_bias_req_grad", lambda s, b, h, i, j: s + heads[h], learned=[heads])
    sums = torch.randn(2 * S, requires_grad=True)
    matrix, per_head = torch.randn(S, S, requires_grad=True), torch.randn(H, S, S, requires_grad=True)
    comparisons: dict[str, tuple[Function, Tensor]] = {
        "1d": (lambda s, b, h, i, j: s + sums[i + j], sums),
        "2d": (lambda s, b, h, i, j: s + matrix[i, j], matrix),
        "2d index multiple": (lambda s, b, h, i, j: s + matrix[i][j], matrix),
        "2d transposed": (lambda s, b, h, i, j: s + matrix[j, i], matrix),
        "3d transposed": (lambda s, b, h, i, j: s + per_head[h, j, i], per_head),
    }
    for name, (score, bias) in comparisons.items():
        same = comparisons["2d"][0] if name == "2d index multiple" else None
        yield Case(f"test_comparison_vs_sdpa_with_learnable_bias {name}", score, learned=[bias], same=same)


def _biases(n: int, kind: str, dtype: torch.dtype) -> Iterator[Case]:
    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=dtype, requires_grad=True)

    line, twice, matrix, gate = drawn(n), drawn(2 * n), drawn(n, n), drawn(H)
    per_head, whole, window, four, other = drawn(H, n, n), drawn(B, H, n, n), drawn(17), drawn(B, H, 4, n), drawn(n)
    which, offset = torch.tensor(0), torch.randint(0, n, (n,))
    functions: dict[str, tuple[Function, list[Tensor]]] = {
        "relative_1d_bias": (lambda s, b, h, i, j: s + twice[torch.abs(i - j)], [twice]),
        "absolute_2d_bias": (lambda s, b, h, i, j: s + matrix[i, j], [matrix]),
        "head_specific_bias": (lambda s, b, h, i, j: s + per_head[h, i, j], [per_head]),
        "batch_head_bias": (lambda s, b, h, i, j: s + whole[b, h, i, j], [whole]),
        "multiplicative_bias": (lambda s, b, h, i, j: s * line[i], [line]),
        "local_window_bias": (lambda s, b, h, i, j: s + window[torch.clamp(i - j + 8, 0, 16)], [window]),
        "global_tokens_bias": (lambda s, b, h, i, j: s + line[j], [line]),
        "weird_bias": (lambda s, b, h, i, j: s + four[b, h, which, i], [four]),
        "indirect_bias": (lambda s, b, h, i, j: s + line[offset[i]], [line]),
        "symmetric_bias": (lambda s, b, h, i, j: s + line[i] + line[j], [line]),
        "flipped_indexed_bias": (lambda s, b, h, i, j: s + matrix[j, i], [matrix]),
        "head_specific_gate": (lambda s, b, h, i, j: s * torch.sigmoid(gate[h].to(torch.float32)), [gate]),
        "distinct_biases": (lambda s, b, h, i, j: s + line[i] + other[j], [line, other]),
    }
    sizes = (B, H, n, D)
    for name, (score, learned) in functions.items():
        yield Case(f"test_{name} {n} {kind}", score, None, sizes, sizes, dtype=dtype, learned=learned)
