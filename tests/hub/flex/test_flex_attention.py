"""`flex_attention` beyond PyTorch's own cases: dropout, post-mods, second derivatives, block masks, errors, memory."""

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from fractions import Fraction
from math import inf
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, noop_mask
from torch.nn.attention.flex_attention import flex_attention as pytorchs
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import qkv
from qkv.errors import ArgumentError, ConfigError, DtypeError, MaskError, QkvError, ShapeError, UnsupportedError

B, H, N, D = 2, 3, 40, 8
Score = Callable[..., Tensor]


def inputs(learns: bool = False, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(B, H, N, D, dtype=dtype, requires_grad=learns) for _ in range(3)]


def places() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    i = torch.arange(N)
    return torch.arange(B).view(-1, 1, 1, 1), torch.arange(H).view(-1, 1, 1), i[:, None], i


def weights(query: Tensor, key: Tensor, score: Score, seen: Score = noop_mask) -> Tensor:
    """Attention weights by the equation, on tensors that broadcast."""
    s = score(query @ key.mT * D**-0.5, *places())
    s = s.masked_fill(~seen(*places()).expand(s.shape), -inf)
    empty = (s == -inf).all(-1, keepdim=True)
    return s.masked_fill(empty, 0).softmax(-1).masked_fill(empty, 0)


def causal(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return torch.where(i >= j, s, -inf)


def squared(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return torch.where(i >= j, s * s, -inf)


def untraceable(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return s - torch.stack([i, j]).max().to(s.dtype) * 0.1


def traceable(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """The same function."""
    return s - torch.maximum(i, j).to(s.dtype) * 0.1


WAYS = {"fast": causal, "tiles": squared, "vmap": untraceable}
LITERAL = {"fast": causal, "tiles": squared, "vmap": traceable}


@pytest.mark.parametrize("way", WAYS)
def test_dropout_drops_what_attention_drops(way: str) -> None:
    query, key, value = inputs()
    found = qkv.flex_attention(query, key, value, WAYS[way], dropout=0.3, generator=torch.Generator().manual_seed(3))
    ones, bias = torch.zeros(B, H, N, D, dtype=query.dtype), torch.zeros(1, 1, dtype=query.dtype)
    _, dropped = qkv.attention_with_weights(
        ones, ones, value, bias=bias, dropout=0.3, generator=torch.Generator().manual_seed(3)
    )
    expected = weights(query, key, LITERAL[way]) * (dropped > 0) / 0.7
    torch.testing.assert_close(found, expected @ value)


@pytest.mark.parametrize("way", WAYS)
def test_post_mod_changes_the_weights(way: str) -> None:
    tensors, gains = inputs(True), torch.randn(H, dtype=torch.float64, requires_grad=True)

    def post(w: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return w * gains[h] + 0.01

    found: Any = qkv.flex_attention(*tensors, WAYS[way], post_mod=post)
    w = weights(*tensors[:2], LITERAL[way])
    expected = torch.where(w > 0, w * gains.view(-1, 1, 1) + 0.01, 0) @ tensors[2]
    torch.testing.assert_close(found, expected)
    learned = [*tensors, gains]
    pairs = (torch.autograd.grad(x.sin().sum(), learned) for x in (found, expected))
    torch.testing.assert_close(*pairs)


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("way", WAYS)
def test_it_has_second_derivatives(way: str, backend: str) -> None:
    small = [x[:1, :1, :5].detach().requires_grad_() for x in inputs()]

    def attend(*tensors: Tensor) -> Any:
        return qkv.flex_attention(*tensors, WAYS[way], backend=backend)

    assert torch.autograd.gradgradcheck(attend, small, fast_mode=True)


@pytest.mark.parametrize("traced", [True, False])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_captured_tensors_have_second_derivatives(traced: bool, dropout: float) -> None:
    """On tiles, with log Σ e^s, a mask and dropout: those of all rows at once."""
    gains, table = (torch.randn(H, N, dtype=torch.float64, requires_grad=True) for _ in range(2))

    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        changed = s * gains[h, i] + (s * table[h, j]).sin()
        return changed if traced else torch.stack([changed, changed]).sum() / 2

    tensors = [*inputs(True), gains, table]
    found = []
    for backend in ("auto", "reference"):
        options = {"generator": torch.Generator().manual_seed(0), "dropout": dropout, "backend": backend}
        output, lse = qkv.flex_attention(
            *tensors[:3], score, lambda b, h, i, j: (i - j).abs() < 9, return_lse=True, **options
        )
        first = torch.autograd.grad(output.sin().sum() + lse.cos().sum(), tensors, create_graph=True)
        found.append(torch.autograd.grad(sum(g.square().sum() for g in first), tensors))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("way", WAYS)
def test_largest_scores(way: str) -> None:
    query, key, value = inputs()
    found: Any = qkv.flex_attention(query, key, value, WAYS[way], return_aux=AuxRequest(lse=True, max_scores=True))
    s = LITERAL[way](query @ key.mT * D**-0.5, *places())
    torch.testing.assert_close(found[1].max_scores, s.amax(-1))
    torch.testing.assert_close(found[1].lse, s.logsumexp(-1))
    nothing: Any = qkv.flex_attention(query, key, value, WAYS[way], return_aux=AuxRequest())
    assert nothing[1] == (None, None)


def test_a_mask_function_serves_as_block_mask() -> None:
    query, key, value = inputs()
    made = create_block_mask(lambda b, h, i, j: i >= j, None, None, N, N, device="cpu")
    found = qkv.flex_attention(query, key, value, block_mask=lambda b, h, i, j: i >= j)
    assert torch.equal(found, qkv.flex_attention(query, key, value, block_mask=made))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "seen", [noop_mask, lambda b, h, i, j: i >= j, lambda b, h, i, j: torch.stack([i, j]).max() < 9]
)
def test_mask_mod_decides_where_blocks_disagree(seen: Score) -> None:
    query, key, value = inputs()
    numbers, indices = torch.ones(1, 1, 5, dtype=torch.int32), torch.zeros(1, 1, 5, 5, dtype=torch.int32)
    made = BlockMask.from_kv_blocks(numbers, indices, BLOCK_SIZE=8, mask_mod=seen)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = pytorchs(query, key, value, block_mask=made)
    torch.testing.assert_close(qkv.flex_attention(query, key, value, block_mask=made), expected)


def test_gradients_reach_tensors_in_masks_and_biases_together() -> None:
    tensors, table = inputs(True), torch.randn(H, 2 * N, dtype=torch.float64, requires_grad=True)
    last = torch.tensor([7, 30])

    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return torch.where(j < last[b], 3 * torch.tanh(s / 3) + table[h, i - j + N], -inf)

    def seen(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (i >= j) & (i > 3)

    found: Any = qkv.flex_attention(*tensors, score, seen)
    expected = weights(*tensors[:2], score, seen) @ tensors[2]
    torch.testing.assert_close(found, expected)
    pairs = (torch.autograd.grad(x.sin().sum(), [*tensors, table]) for x in (found, expected))
    torch.testing.assert_close(*pairs)


@pytest.mark.parametrize("way", ["distance", "pairs", "tiles", "scale"])
@pytest.mark.parametrize("n", [N, 600])
def test_captured_tensor_changed_before_backward_never_gives_a_wrong_gradient(way: str, n: int) -> None:
    tensors = [torch.randn(1, 2, n, D, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    table = torch.randn(2 * n, dtype=torch.float64, requires_grad=True)
    functions: dict[str, Score] = {
        "distance": lambda s, b, h, i, j: 2 * torch.tanh(s / 2) + table[i - j + n].exp(),
        "pairs": lambda s, b, h, i, j: s + table[i + j].exp(),
        "tiles": lambda s, b, h, i, j: s * s * table[i + j],
        "scale": lambda s, b, h, i, j: s * table[h],
    }
    output: Any = qkv.flex_attention(*tensors, functions[way])
    expected = torch.autograd.grad(output.sin().sum(), [*tensors, table])
    output = qkv.flex_attention(*tensors, functions[way])
    with torch.no_grad():
        table.mul_(2)
    try:
        found = torch.autograd.grad(output.sin().sum(), [*tensors, table])
    except RuntimeError:
        return
    assert way != "tiles", "it is computed again"
    torch.testing.assert_close(found, expected)


RELATED: dict[str, Callable[[Tensor, Tensor], Score]] = {
    "view": lambda t, u: lambda s, b, h, i, j: s * s + t[10:][i - j] * t[i - j] + t.view(2, 40)[b, j],
    "view in a bias": lambda t, u: lambda s, b, h, i, j: s + t[10:][i - j] - t[i - j],
    "computed": lambda t, u: lambda s, b, h, i, j: s.sin() + u[i - j] * t[i - j],
    "computed, in a bias": lambda t, u: lambda s, b, h, i, j: s + u[i] * t[j],
    "a list": lambda t, u: lambda s, b, h, i, j: s + torch.stack([u, t]).sum(0)[i - j],
    "by vmap": lambda t, u: lambda s, b, h, i, j: s + torch.stack([t[i] + 0 * s, u[j] + 0 * s]).prod(0),
}


@pytest.mark.parametrize("around", ["nothing", "a checkpoint", "hooks on saved tensors"])
@pytest.mark.parametrize("name", RELATED)
def test_tensors_computed_from_each_other_get_their_own_gradients(name: str, around: str) -> None:
    def run(flex: bool, query: Tensor, given: Tensor) -> Tensor:
        table = given * 1.0
        score = RELATED[name](table, table.square())
        _, key, value = inputs()
        if flex:
            return qkv.flex_attention(query, key, value, score_mod=score)  # type: ignore[return-value]
        return weights(query, key, score) @ value

    found = []
    for flex in (False, True):
        query = inputs(learns=True)[0]
        given = torch.linspace(-1, 1, 80, dtype=torch.float64, requires_grad=True)
        with torch.autograd.graph.save_on_cpu() if around == "hooks on saved tensors" and flex else nullcontext():
            if around == "a checkpoint" and flex:
                output = checkpoint(run, flex, query, given, use_reentrant=False)
            else:
                output = run(flex, query, given)
        factors = torch.arange(output.numel(), dtype=torch.float64).sin().view_as(output)
        found.append(torch.autograd.grad((output * factors).sum(), [query, given]))
    for got, want in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(got, want)


HIDING: dict[str, Score] = {
    "tiles": lambda s, b, h, i, j: torch.where(i % 3 > 0, s * s, -inf),
    "a sum with −∞": lambda s, b, h, i, j: s * s + torch.where(i % 3 > 0, 0.0, -inf),
    "vmap": lambda s, b, h, i, j: torch.where(torch.stack([i, i]).max() % 3 > 0, s * s, -inf),
}


@pytest.mark.parametrize("seen", [None, lambda b, h, i, j: i >= j])
@pytest.mark.parametrize("name", HIDING)
def test_rows_that_the_function_hides_have_no_gradient(name: str, seen: Score | None) -> None:
    query, key, value = inputs(learns=True)
    output, lse = qkv.flex_attention(query, key, value, HIDING[name], seen, return_lse=True)
    hidden = torch.arange(N) % 3 == 0
    assert (output[:, :, hidden] == 0).all()
    assert (lse[:, :, hidden] == -inf).all()
    (output.sum() + lse[:, :, ~hidden].sum()).backward()
    assert query.grad is not None
    assert (query.grad[:, :, hidden] == 0).all()
    for x in (query, key, value):
        assert x.grad is not None
        assert x.grad.isfinite().all()


def test_half_precision_and_mixed_types() -> None:
    query, key, value = inputs(dtype=torch.float32)
    found = qkv.flex_attention(query.bfloat16(), key, value.half(), squared)
    assert found.dtype == torch.bfloat16  # type: ignore[union-attr]
    with torch.autocast("cpu", torch.bfloat16):
        assert qkv.flex_attention(query, key, value, causal).dtype == torch.bfloat16  # type: ignore[union-attr]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("empty", [0, 1, 2])
def test_empty_sizes(way: str, empty: int) -> None:
    sizes = [2, 3, 5]
    sizes[empty] = 0
    query, key, value = (torch.randn(*sizes[:2], n, D, requires_grad=True) for n in (sizes[2], 4, 4))
    output: Any = qkv.flex_attention(query, key, value, WAYS[way])
    assert output.shape == (*sizes, D)
    output.sum().backward()
    no_keys: Any = qkv.flex_attention(torch.randn(2, 3, 5, D), *torch.randn(2, 2, 3, 0, D), WAYS[way], return_lse=True)
    assert torch.equal(no_keys[0], torch.zeros(2, 3, 5, D))
    assert torch.equal(no_keys[1], torch.full((2, 3, 5), -inf))


class Largest(TorchDispatchMode):
    """Remembers the most elements of any result."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if isinstance(found, Tensor):
            self.elements = max(self.elements, found.untyped_storage().size() // found.element_size())
        return found


@pytest.mark.parametrize(
    "score",
    [
        lambda s, b, h, i, j: s + torch.exp2(-h) * (j - i),
        lambda s, b, h, i, j: s + (i % 7 - j % 5),
        lambda s, b, h, i, j: torch.where(i % 7 != j % 5, s, -inf),
        lambda s, b, h, i, j: s * s,
        untraceable,
    ],
)
def test_no_matrix_is_made(score: Score) -> None:
    n = 4096
    tensors = [torch.randn(1, 1, n, 4, requires_grad=True) for _ in range(3)]
    with Largest() as largest:
        output: Any = qkv.flex_attention(*tensors, score)
        output.sum().backward()
    assert largest.elements <= n * n // 4


_Q, _K = torch.zeros(2, 4, 16, D), torch.zeros(2, 2, 16, D)


def _sliced() -> BlockMask:
    return create_block_mask(noop_mask, 2, 4, 16, 16, device="cpu")[0:1]


@pytest.mark.parametrize(
    ("arguments", "named", "error", "pytorch", "message"),
    [
        ((_Q[0], _Q, _Q), {}, UnsupportedError, NotImplementedError, "query: expected four dimensions"),
        ((_Q, _K, _K), {}, ShapeError, ValueError, "enable_gqa=True"),
        ((_K, _Q, _Q), {"enable_gqa": True}, ShapeError, ValueError, "heads that divide 2"),
        ((_Q, _Q[..., :3], _Q), {}, ShapeError, ValueError, "key: expected width 8"),
        ((_Q, _Q, _Q[:, :, :3]), {}, ShapeError, ValueError, "value: expected the shape"),
        ((_Q, _Q[:1], _Q[:1]), {}, ShapeError, ValueError, "block_mask=None"),
        ((_Q, _Q.repeat(2, 1, 1, 1), _Q.repeat(2, 1, 1, 1)), {}, ShapeError, ValueError, "batch 2 or 1"),
        ((_Q, _Q.to("meta"), _Q), {}, DtypeError, ValueError, "key: expected device cpu"),
        ((_Q, _Q, "v"), {}, DtypeError, TypeError, "value: expected a torch.Tensor"),
        ((_Q, _Q, _Q), {"block_mask": torch.ones(16, 16)}, MaskError, ValueError, "block_mask: expected a BlockMask"),
        ((_Q, _Q, _Q), {"block_mask": _sliced}, MaskError, RuntimeError, "sliced BlockMask"),
        ((_Q[:, :, :5], _Q, _Q), {"block_mask": "made"}, ShapeError, ValueError, "block_mask: expected lengths"),
        ((_Q, _Q, _Q), {"kernel_options": {"BACKEND": "NUMBA"}}, ConfigError, ValueError, "BACKEND in AUTO"),
        ((_Q, _Q, _Q), {"return_lse": True, "return_aux": AuxRequest()}, ConfigError, ValueError, "return_lse"),
        ((_Q, _Q, _Q, 3), {}, ArgumentError, TypeError, "score_mod: expected a function"),
        ((_Q, _Q, _Q, torch.zeros(16, 16)), {}, ArgumentError, TypeError, "got Tensor. Omit it for none; a bias is"),
        ((_Q, _Q, _Q), {"post_mod": "softmax"}, ArgumentError, TypeError, "post_mod: expected a function"),
        ((_Q, _Q, _Q), {"kernel_options": ["BACKEND"]}, ArgumentError, TypeError, "kernel_options: expected a table"),
        ((_Q, _Q, _Q), {"return_aux": True}, ArgumentError, TypeError, "return_aux: expected an AuxRequest; got bool"),
        ((_Q, _Q, _Q), {"scale": "1"}, ArgumentError, TypeError, "scale: expected a number or None; got '1'"),
        ((_Q, _Q, _Q), {"scale": True}, ArgumentError, TypeError, "scale: expected a number or None; got True"),
        ((_Q, _Q, _Q), {"dropout": 1.0}, ConfigError, ValueError, "dropout: expected"),
        ((_Q, _Q, _Q, squared), {"backend": "sdpa"}, UnsupportedError, ValueError, "backend: expected 'auto'"),
    ],
)
def test_errors_say_what_to_do(
    arguments: Any, named: dict[str, Any], error: type[QkvError], pytorch: type[Exception], message: str
) -> None:
    """PyTorch's exception type, our message."""
    given = named.get("block_mask")
    if given is _sliced:
        named = {"block_mask": _sliced()}
    if given == "made":
        named = {"block_mask": create_block_mask(noop_mask, 2, 4, 16, 16, device="cpu")}
    with pytest.raises(error, match=message) as found:
        qkv.flex_attention(*arguments, **named)
    assert isinstance(found.value, pytorch)


@pytest.mark.parametrize("scale", [0.5, 1, Fraction(1, 2), torch.tensor(0.5), np.float32(0.5)])
def test_a_scale_is_any_number(scale: Any) -> None:
    query, key, value = inputs()
    want = qkv.flex_attention(query, key, value, scale=float(scale))
    torch.testing.assert_close(qkv.flex_attention(query, key, value, scale=scale), want)


def test_what_the_function_raises_reaches_the_caller() -> None:
    def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        qkv.flex_attention(*inputs(), score)


@pytest.mark.parametrize("backend", ["reference", "blocked", "auto"])
def test_the_default_device_changes_no_number_of_a_score(backend: str) -> None:
    query, key, value = torch.randn(3, 1, 2, 6, 4).unbind()
    table = torch.randn(6, 6)

    def call() -> Any:
        return qkv.flex_attention(query, key, value, lambda s, b, h, q, k: 2.0**s + table[q - 1, k], backend=backend)

    expected = call()
    with torch.device("meta"):
        found = call()
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("way", ["score_mod", "block_mask"])
def test_a_table_of_numpy_is_refused_by_the_function(way: str) -> None:
    x, table = torch.randn(1, 1, 4, 4), np.ones((4, 4), bool)
    function = {
        "score_mod": lambda score, b, h, q, k: score + table[q, k],
        "block_mask": lambda b, h, q, k: table[q, k],
    }[way]
    with pytest.raises(DtypeError) as refused:
        qkv.flex_attention(x, x, x, **{way: function})
    assert "NumPy" in refused.value.got


def test_a_function_may_read_the_numbers_of_a_tensor_that_it_captures() -> None:
    x, table = torch.randn(1, 1, 4, 4), torch.ones(3)
    output = qkv.flex_attention(x, x, x, score_mod=lambda s, b, h, q, k: s + float(np.asarray(table).sum()) * (q > k))
    expected = qkv.flex_attention(x, x, x, score_mod=lambda s, b, h, q, k: s + 3.0 * (q > k))
    torch.testing.assert_close(output, expected)
