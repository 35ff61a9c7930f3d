"""A row that sees nothing, or whose weights are all zero: output 0, weights 0, lse −inf, finite zero gradients."""

import torch
from tests.contract.calls import MECHANISMS, Call, Request, by_part, drawn, request, served_part
from tests.contract.served import by_served

from qkv.functional import attention, attention_with_state, attention_with_weights
from qkv.masks.patterns import lengths
from qkv.normalizers.dense import Hard
from qkv.normalizers.row_state import merge
from qkv.scores.base import Score
from qkv.scores.free import Uniform
from qkv.scores.kernels import Boxcar, Epanechnikov, SquaredDistance
from qkv.scores.products import ScaledDot

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def some_empty() -> torch.Tensor:
    seen = torch.ones(2, 1, 5, 7, dtype=torch.bool)
    seen[0, 0, 3] = False
    seen[1] = False
    return seen


MASKS = {
    "dense": some_empty(),
    "bounds": lengths(torch.tensor([4, 0]), torch.tensor([3, 5])),
    "predicate": lengths(torch.tensor([4, 0]), torch.tensor([3, 5])) | lengths(0),
}


def empty_rows(mask: str) -> torch.Tensor:
    rows = torch.zeros(2, 2, 5, dtype=torch.bool)
    rows[1] = True
    rows[0, :, 3 if mask == "dense" else slice(3, None)] = True
    return rows


@by_part
@by_served(lambda mask, dtype: drawn(dtype=dtype, mask=MASKS[mask]), every=2, mask=MASKS, dtype=DTYPES)
def test_empty_row_gives_zero(backend: str, mask: str, dtype: torch.dtype, whole: bool) -> None:
    rows, turn = empty_rows(mask), len(DTYPES) * list(MASKS).index(mask) + DTYPES.index(dtype)
    calls = [Call.draw(*mechanism, dtype=dtype, mask=MASKS[mask]) for mechanism in MECHANISMS]
    for call in served_part(calls, lambda call: call.serves(backend), turn, 1 if whole else 12):
        output, gradients = call.gradients(backend)
        assert (output[rows] == 0).all(), call
        assert output[~rows].isfinite().all(), call
        assert all(x.isfinite().all() for x in gradients.values()), call
        assert (gradients["query"][rows] == 0).all(), call
        assert all((gradients[name][1] == 0).all() for name in ("key", "value")), call
        assert (call.weights(backend)[1][rows] == 0).all(), call


def states(mask: str) -> list[Call]:
    """Calls without a sink, whose row state no key leaves as it is."""
    mechanisms = [(score, normalizer) for score, normalizer in MECHANISMS if normalizer.name != "softmax_sink"]
    return [Call.draw(*mechanism, dtype=torch.float32, mask=MASKS[mask]) for mechanism in mechanisms]


@by_served(lambda mask: (call.request(state=True, gradient=False) for call in states(mask)), mask=MASKS)
def test_empty_row_has_the_state_of_no_keys(backend: str, mask: str) -> None:
    rows = empty_rows(mask)
    nothing = {"softmax": -torch.inf, "hard": -torch.inf, "sparsemax": torch.inf, "entmax": torch.inf}
    for call in states(mask):
        if not call.serves(backend, state=True, gradient=False):
            continue
        output, state = call.state(backend)
        assert (output[rows] == 0).all(), call
        assert (state.value[rows] == nothing.get(state.kind, 0.0)).all(), (call, state.value[rows])
        assert state.value[~rows].isfinite().all(), call


@by_served(drawn, sizes=[((2, 2), 5, 0), ((2, 2), 0, 7), ((0, 2), 5, 7), ((2, 2), 0, 0)])
def test_empty_axes(backend: str, sizes: tuple[tuple[int, int], int, int]) -> None:
    for score, normalizer in MECHANISMS:
        call = Call.draw(score, normalizer, sizes)
        if not call.serves(backend):
            continue
        output, gradients = call.gradients(backend)
        assert output.shape == (*sizes[0], sizes[1], 4), call
        assert (output == 0).all(), call
        assert all((x == 0).all() for x in gradients.values()), call
        assert call.weights(backend)[1].shape == (*sizes[0], *sizes[1:]), call
        if call.serves(backend, state=True, gradient=False):
            assert call.state(backend)[1].value.shape == (*sizes[0], sizes[1]), call


def hard_behind_a_bias(score: Score, dtype: torch.dtype, gradient: bool) -> Request:
    """Two items of five rows; the bias hides some keys, and all those of some rows."""
    generator = torch.Generator().manual_seed(5)
    query, key = (torch.randn(2, n, 3, dtype=dtype, generator=generator, requires_grad=gradient) for n in (5, 7))
    value = torch.randn(2, 7, 4, dtype=dtype, generator=generator, requires_grad=gradient)
    bias = torch.zeros(2, 5, 7, dtype=dtype).masked_fill(~(some_empty()[:, 0] & (torch.arange(7) % 3 > 0)), -torch.inf)
    return request(query, key, value, score=score, normalizer=Hard(), bias=bias)


@by_served(hard_behind_a_bias, score=[ScaledDot(), SquaredDistance(), Uniform()], dtype=DTYPES, gradient=[True, False])
def test_hard_attention_reads_no_key_behind_a_bias_of_minus_infinity(
    backend: str, score: Score, dtype: torch.dtype, gradient: bool
) -> None:
    """A bias of −∞ hides keys as a mask does: rows of no others are 0, and merge as if they saw nothing."""
    asked = hard_behind_a_bias(score, dtype, gradient)
    (query, key, value), options = asked.tensors, asked.options
    mask = options["bias"] == 0
    output = attention(query, key, value, **options, backend=backend)
    assert torch.equal(output, attention(query, key, value, score=score, normalizer=Hard(), mask=mask))
    assert (output[~mask.any(-1)] == 0).all()
    parts = [
        attention_with_state(query, key[:, part], value[:, part], **(options | {"bias": options["bias"][..., part]}))
        for part in (slice(0, 3), slice(3, 7))
    ]
    assert torch.equal(merge(parts)[0], output)


def of_widths(widths: tuple[int, int]) -> Request:
    return request(torch.zeros(2, 5, widths[0]), torch.zeros(2, 7, widths[0]), torch.randn(2, 7, widths[1]))


@by_served(of_widths, widths=[(0, 4), (3, 0), (0, 0)])
def test_widths_of_zero(backend: str, widths: tuple[int, int]) -> None:
    """With vectors of width 0 all scores are 0: the plain average."""
    query, key, value = of_widths(widths).tensors
    expected = value.mean(-2, keepdim=True).expand(2, 5, widths[1])
    assert torch.allclose(attention(query, key, value, backend=backend), expected, atol=1e-6)


def out_of_reach(dtype: torch.dtype, kernel: Score) -> Request:
    query = torch.tensor([[0.0], [60.0]], dtype=dtype, requires_grad=True)
    key = torch.tensor([[0.5], [-0.5]], dtype=dtype, requires_grad=True)
    value = torch.ones(2, 3, dtype=dtype, requires_grad=True)
    return request(query, key, value, score=kernel)


@by_served(out_of_reach, dtype=DTYPES, kernel=[Boxcar(), Epanechnikov(), Epanechnikov(power=1)])
def test_kernel_weights_that_are_all_zero_give_zero(backend: str, dtype: torch.dtype, kernel: Score) -> None:
    """No key within reach. A Gaussian reaches every key: under its sum it is normalized in log space."""
    query, key, value = out_of_reach(dtype, kernel).tensors
    output, weights = attention_with_weights(query, key, value, score=kernel, backend=backend)
    assert (output[1] == 0).all()
    assert (weights[1] == 0).all()
    assert torch.allclose(output[0], torch.ones(3, dtype=dtype))
    gradients = torch.autograd.grad(output.sum(), [query, key, value], materialize_grads=True)
    assert all(x.isfinite().all() for x in gradients)
    assert (gradients[0][1] == 0).all()


def endless() -> Request:
    bias = torch.zeros(5, 5)
    bias[2] = -torch.inf
    return request(*torch.randn(3, 2, 5, 4).unbind(), bias=bias)


@by_served(endless)
def test_a_bias_of_minus_infinity_everywhere_gives_zero(backend: str) -> None:
    """All weights of the row are zero, as with a mask."""
    call = endless()
    query, key, value, bias = *call.tensors, call.options["bias"]
    output, weights = attention_with_weights(query, key, value, bias=bias, backend=backend)
    assert (output[:, 2] == 0).all()
    assert (weights[:, 2] == 0).all()
    assert output.isfinite().all()
    plain = [x.detach() for x in (query, key, value)]
    lse = attention_with_state(*plain, bias=bias, backend=backend)[1].lse
    assert (lse[:, 2] == -torch.inf).all()
    assert lse[:, :2].isfinite().all()
