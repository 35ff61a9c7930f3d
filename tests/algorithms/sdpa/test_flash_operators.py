"""PyTorch's private kernel gets what it takes for granted, and what it swallows or spreads is found."""

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tests.here import here
from torch import Tensor

import qkv
from qkv.algorithms.sdpa.flash_operators import backward, forward
from qkv.biases import alibi
from qkv.masks import Mask, causal, documents, lengths, span, window
from qkv.normalizers import Softmax

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "columns first": lambda x: x.mT.contiguous().mT,
    "every other": lambda x: torch.stack((x, x), -1)[..., 0],
    "one number a row": lambda x: x[..., :1].expand(x.shape),
    "one number": lambda x: x[:1, :1, :1, :1].expand(x.shape),
    "heads last": lambda x: x.movedim(1, -1).contiguous().movedim(-1, 1),
    "with an offset": lambda x: torch.cat((x.new_zeros(3), x.flatten()))[3:].view(x.shape),
    "sign to be turned": lambda x: torch._neg_view(-x),
}
by_layout = pytest.mark.parametrize("name", LAYOUTS)
MECHANISMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"mask": causal()},
    "lengths": {"mask": lengths(5)},
    "sink": {"normalizer": Softmax(0.5)},
    "transposed mask": {"mask": (torch.arange(9 * 7).view(9, 7) % 3 > 0).T},
    "transposed bias": {"bias": torch.linspace(-1, 1, 63, dtype=torch.float64).view(9, 7).T},
    "expanded bias": {"bias": torch.linspace(-1, 1, 7, dtype=torch.float64).view(7, 1).expand(7, 9)},
}


def drawn(queries: int = 7, keys: int = 9, width: int = 4, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, 3, n, width, dtype=torch.float64).to(dtype) for n in (queries, keys, keys)]


def plain(x: Tensor) -> Tensor:
    return x.detach().clone(memory_format=torch.contiguous_format)


@by_layout
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("width", [1, 4])
def test_layouts_change_nothing(name: str, mechanism: str, width: int) -> None:
    """Output, row state, weights of the map and gradients, those of cotangents laid out so too."""
    given, odd = MECHANISMS[mechanism], [LAYOUTS[name](x) for x in drawn(width=width)]
    even = [plain(x) for x in odd]
    answers = []
    for tensors, backend in ((odd, "sdpa"), (even, "reference")):
        output, state = qkv.attention_with_state(*tensors, backend=backend, **given)
        pixels = qkv.attention_map(*tensors[:2], **given).dense()
        leaves = [x.detach().requires_grad_() for x in tensors]
        attended = qkv.attention(*leaves, backend=backend, **given)
        cotangent = LAYOUTS[name](torch.linspace(-1, 2, attended.numel(), dtype=torch.float64).view(attended.shape))
        answers.append([output, state.value, pixels, attended, *torch.autograd.grad(attended, leaves, cotangent)])
    for ours, judge in zip(*answers, strict=True):
        torch.testing.assert_close(ours, judge, atol=1e-12, rtol=1e-12)


@by_layout
def test_the_operators_take_any_strides(name: str) -> None:
    given = drawn(9, 9)
    output, lse = forward(*given, None, False, 0.5)
    grad = torch.linspace(-1, 2, output.numel(), dtype=torch.float64).view(output.shape)
    tensors = (grad, *given, output)
    odd = [LAYOUTS[name](x) for x in tensors]
    found = (
        *forward(*odd[1:4], None, False, 0.5),
        *backward(*odd, lse.mT.contiguous().mT, False, 0.5),
    )
    even = [plain(x) for x in odd]
    expected = *forward(*even[1:4], None, False, 0.5), *backward(*even, lse, False, 0.5)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-12)


def test_a_sink_learns_from_images() -> None:
    """Pixels of a feature map as positions, the layout that `flatten(2).transpose(1, 2)` gives."""
    image = torch.randn(2, 3, 16, 7, 9, dtype=torch.float64, requires_grad=True)
    sink = torch.randn(3, dtype=torch.float64, requires_grad=True)
    pixels = image.flatten(3).transpose(2, 3)
    answers = []
    for backend in ("reference", "sdpa"):
        output = qkv.attention(pixels, pixels, pixels, normalizer=Softmax(sink), backend=backend)
        answers.append([output, *torch.autograd.grad(output.square().sum(), [image, sink], retain_graph=True)])
    for expected, got in zip(*answers, strict=True):
        torch.testing.assert_close(got, expected)


DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def same_numbers(ours: Tensor, judge: Tensor, dtype: torch.dtype) -> None:
    """NaN where the equation has it, and its numbers elsewhere.

    Four terms and a scale round a score of at most Σ|q||k|/2 ≤ 16 by 5·16 roundoffs, a weight by twice that share of
    itself, and an output of values up to 4 by 640 of them. Half types round weights and output once more, by 4 units.
    """
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    slack = 320 * torch.finfo(wide).eps + (8 * torch.finfo(dtype).eps if dtype.itemsize == 2 else 0)
    torch.testing.assert_close(ours.double(), judge.double(), atol=slack, rtol=slack, equal_nan=True)


@by_dtype
@pytest.mark.parametrize("keys", [*range(1, 18), 31, 33, 64])
def test_nan_of_a_query_shows_with_any_number_of_keys(keys: int, dtype: torch.dtype) -> None:
    query, key, value = drawn(10, keys, dtype=dtype)
    query[1, 2, 3] = math.nan
    query[0, 1, 4, 2] = math.nan
    given: dict[str, Any]
    for given in ({}, {"mask": causal()}, {"mask": lengths(max(1, keys - 1))}, {"bias": torch.ones(keys, dtype=dtype)}):
        judge, judged = qkv.attention_with_state(query, key, value, backend="reference", **given)
        output, state = qkv.attention_with_state(query, key, value, backend="sdpa", **given)
        same_numbers(output, judge, dtype)
        same_numbers(state.value, judged.value, dtype)
        assert output[1, 2, 3].isnan().all()
        # Once described, and once more the short way that is known then.
        for _ in range(2):
            same_numbers(qkv.attention(query, key, value, backend="sdpa", **given), judge, dtype)


@pytest.mark.parametrize("keys", [1, 7, 16])
def test_nan_of_a_query_shows_beside_a_sink(keys: int) -> None:
    query, key, value = drawn(10, keys)
    query[1, 2, 3] = math.nan
    for mask in (None, causal()):
        given: dict[str, Any] = {"normalizer": Softmax(0.5), "mask": mask}
        judge, judged = qkv.attention_with_state(query, key, value, backend="reference", **given)
        output, state = qkv.attention_with_state(query, key, value, backend="sdpa", **given)
        torch.testing.assert_close(output, judge, equal_nan=True)
        torch.testing.assert_close(state.value, judged.value, equal_nan=True)


@by_dtype
@pytest.mark.parametrize("keys", [1, 8, 16, 32, 47, 48])
def test_infinite_scores_give_nan(keys: int, dtype: torch.dtype) -> None:
    """inf − inf: the kernel's exponential in half types gives 0 for it where keys fill its registers."""
    query, key, value = drawn(10, keys, dtype=dtype)
    query[..., 0], key[1, ..., 0] = 1, math.inf
    for mask in (None, causal()):
        output = qkv.attention(query, key, value, mask=mask, backend="sdpa")
        assert output[1].isnan().all()
        same_numbers(output, qkv.attention(query, key, value, mask=mask, backend="reference"), dtype)


SEEN = torch.arange(20 * 24).view(20, 24) % 5 > 1
MASKS: dict[str, Mask | Tensor] = {
    "causal": causal(),
    "offset": causal(3),
    "end": causal(align="end"),
    "window": window(2, 1),
    "dense": SEEN,
    "documents": documents(torch.arange(20) // 6, torch.arange(24) // 6),
    "either": window(1, 1) | lengths(2),
}
POISON = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf, "overflow": 1e30}


def poisoned(name: str, dtype: torch.dtype = torch.float32) -> tuple[list[Tensor], list[Tensor]]:
    """Tensors, clean ones and ones with a key that some rows see; products with it overflow at the latest."""
    clean = drawn(20, 24, dtype=dtype)
    clean[0][1, 2] *= 1e10
    dirty = [x.clone() for x in clean]
    dirty[1][1, 2, 7] = POISON[name]
    return clean, dirty


@pytest.mark.parametrize("poison", POISON)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("extra", ["none", "bias", "state", "gradient", "alibi"])
def test_rows_are_as_before_where_a_key_that_they_may_not_see_is_no_number(mask: str, poison: str, extra: str) -> None:
    """Forward; products as large as overflow leave one key all the weight, so that both answers are one value."""
    seen = MASKS[mask] if isinstance(MASKS[mask], Tensor) else qkv.masks.matrix(MASKS[mask], 20, 24)
    blind = ~seen[:, 7]
    assert blind.any()
    assert seen[:, 7].any()
    clean, dirty = poisoned(poison)
    if extra == "gradient":
        dirty = [x.requires_grad_() for x in dirty]
    given: dict[str, Any] = {"mask": MASKS[mask], "backend": "sdpa"}
    if extra in ("bias", "alibi"):
        given["bias"] = torch.linspace(-1, 1, 24) if extra == "bias" else alibi(0.5)
    if extra == "state":
        output, state = qkv.attention_with_state(*dirty, **given)
        judged = qkv.attention_with_state(*clean, **{**given, "backend": "reference"})[1]
        torch.testing.assert_close(state.value[..., blind], judged.value[..., blind], rtol=1e-5, atol=1e-5)
    else:
        output = qkv.attention(*dirty, **given).detach()
    judge = qkv.attention(*clean, **{**given, "backend": "reference"})
    same_numbers(output[..., blind, :], judge[..., blind, :], torch.float32)
    literal = qkv.attention(*dirty, **{**given, "backend": "reference"})
    same_numbers(output, literal.detach(), torch.float32)


@pytest.mark.parametrize("mask", MASKS)
def test_finite_values_stay_with_those_who_see_them(mask: str) -> None:
    seen = MASKS[mask] if isinstance(MASKS[mask], Tensor) else qkv.masks.matrix(MASKS[mask], 20, 24)
    clean = drawn(20, 24, dtype=torch.float32)
    for large, dtype in itertools.product((1e20, 3e38), (torch.float32, torch.bfloat16)):
        tensors = [x.to(dtype) for x in clean]
        expected = qkv.attention(*tensors, mask=MASKS[mask], backend="sdpa")
        tensors[2][:, :, 7] = large
        found = qkv.attention(*tensors, mask=MASKS[mask], backend="sdpa")
        assert torch.equal(found[:, :, ~seen[:, 7]], expected[:, :, ~seen[:, 7]])


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("backend", "mask"),
    [
        ("auto", "offset"),
        ("sdpa", "dense"),
        pytest.param("auto", "dense", marks=pytest.mark.slow),
        pytest.param("sdpa", "offset", marks=pytest.mark.slow),
    ],
)
def test_who_traces_gets_rows_that_see_no_more(mask: str, backend: str) -> None:
    """Nothing can be looked at in a graph: it takes tiles, whose hidden scores are overwritten."""
    seen = MASKS[mask] if isinstance(MASKS[mask], Tensor) else qkv.masks.matrix(MASKS[mask], 20, 24)
    clean, dirty = poisoned("nan")

    def attend(*tensors: Tensor) -> Tensor:
        return qkv.attention(*tensors, mask=MASKS[mask], backend=backend)

    torch.compiler.reset()
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    if backend == "sdpa":
        # The kernel cannot be checked in a graph, so whoever asks for it is refused.
        with pytest.raises(Exception, match="Unsupported"):
            compiled(*dirty)
        return
    found = compiled(*dirty)
    blind = ~seen[:, 7]
    same_numbers(found[..., blind, :], attend(*clean)[..., blind, :], torch.float32)
    assert found[1, 2, seen[:, 7]].isnan().all()


HIDDEN = {(False, "causal"), (False, "tail"), (True, "bias")}
COMPILED = {(False, 5), (True, 16)}
"""Cases that are compiled in the fast suite: each takes seconds."""
HIDING: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"mask": causal()},
    "tail": {"mask": span(torch.tensor([17, 3]))},
    "nothing": {"mask": span(torch.tensor([0, 20]))},
    "bias": {"bias": torch.where(torch.arange(20) > 16, 0.5, -torch.inf)},
}


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("dynamic", "hiding"),
    [
        pytest.param(dynamic, hiding, marks=[] if (dynamic, hiding) in HIDDEN else pytest.mark.slow)
        for dynamic in (False, True)
        for hiding in HIDING
    ],
)
def test_keys_without_numbers_show_in_a_compiled_call(hiding: str, dynamic: bool) -> None:
    """Every key that some rows see holds one: the kernel takes them for empty rows, where they fill no register."""
    keys = 4 if hiding in ("plain", "causal") else 20
    given = HIDING[hiding]
    attend = partial(qkv.attention, **given, backend="sdpa")
    torch.compiler.reset()
    compiled = torch.compile(attend, backend="eager", fullgraph=True, dynamic=dynamic)
    query, key, value = (torch.randn(2, 2, n, 8) for n in (6, keys, keys))
    query[..., 3] = query[..., 3].abs()
    for poison in (math.nan, math.inf):
        key[0, 1, -4 if hiding != "causal" else 0 :, 3] = poison
        key[0, 0, :2, 3] = poison
        expected = qkv.attention(query, key, value, **given, backend="reference")
        assert expected.isnan().any()
        same_numbers(compiled(query, key, value), expected, torch.float32)


@pytest.mark.parametrize("backend", here("auto", "sdpa", "blocked", "rowwise"))
@pytest.mark.parametrize("keys", [7, 16, 40])
def test_a_row_state_is_that_of_the_equation_where_all_scores_overflow(keys: int, backend: str) -> None:
    """A state of 0 would give such a row a share of what it is merged with."""
    query, key, value = torch.full((1, 1, 3, 8), 1e30), torch.full((1, 1, keys, 8), -1e30), torch.randn(1, 1, keys, 8)
    key[..., -1, :] = 0
    query[..., 1, :] = 0
    masks: tuple[Any, ...] = None, causal(), causal(2), lengths(keys - 1)
    for real, mask in itertools.product((keys, keys - 1), masks):
        tensors = query, key[..., :real, :], value[..., :real, :]
        output, state = qkv.attention_with_state(*tensors, mask=mask, backend=backend)
        judge, judged = qkv.attention_with_state(*tensors, mask=mask, backend="reference")
        same_numbers(state.value, judged.value, torch.float32)
        if mask is None and backend != "rowwise":
            same_numbers(output, judge, torch.float32)


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("is_causal", "keys"),
    [
        pytest.param(is_causal, keys, marks=[] if (is_causal, keys) in COMPILED else pytest.mark.slow)
        for is_causal in (False, True)
        for keys in (1, 5, 15, 16, 20)
    ],
)
def test_nan_of_a_query_shows_in_a_compiled_call(keys: int, is_causal: bool) -> None:
    """A compilation takes a second: the eager test above has every number of keys."""
    query, key, value = (torch.randn(1, 2, n, 8) for n in (3, keys, keys))
    query[0, 1, 2, 3] = torch.nan
    mask = causal() if is_causal else None
    compiled = torch.compile(lambda q, k, v: qkv.attention(q, k, v, mask=mask), backend="eager", fullgraph=True)
    output = compiled(query, key, value)
    assert output[0, 1, 2].isnan().all()
    assert output.isfinite().sum() == output.numel() - output.shape[-1]
