"""Products by oneDNN equal PyTorch's own up to rounding, with gradients; unsupported inputs never reach it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from qkv.compiled import openmp
from qkv.linalg import matmul, mkl
from qkv.linalg.matmul import apply_layer, batched, cached_weight, contiguous_rows, linear, onednn_serves, product
from qkv.linalg.packed import PackedWeight
from qkv.linalg.session import DecodingSession
from qkv.nn.blocks import TransformerBlock
from qkv.nn.feed_forward import FeedForward
from qkv.nn.multihead import MultiHeadAttention

SHAPES = [((64, 256), 512), ((4, 33, 130), 1000), ((2, 3, 50, 96), 96), ((700, 3), 1024)]


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    """What a test learns about its processor is forgotten after it."""
    favored, panels = matmul._onednn_is_faster, matmul._packed_weight_class
    yield
    favored.cache_clear()
    panels.cache_clear()


@pytest.fixture
def onednn(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a processor whose widest registers MKL leaves unused, for smaller products than there."""
    if not torch._C._has_mkldnn:
        pytest.skip("PyTorch without oneDNN")
    monkeypatch.setattr(matmul, "_onednn_is_faster", lambda: True)
    monkeypatch.setattr(matmul, "_MIN_MULTIPLICATIONS", 2**20)
    return


class _Layer(nn.Module):
    """A module whose layer is computed by `apply_layer`."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(256, 512)

    def forward(self, x: Tensor) -> Tensor:
        return apply_layer(self.layer, x)


def drawn(shape: tuple[int, ...], size: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(shape), torch.randn(size, shape[-1]), torch.randn(size)
    return x.requires_grad_(), weight.requires_grad_(), bias.requires_grad_()


@pytest.mark.usefixtures("onednn")
@pytest.mark.parametrize(("shape", "size"), SHAPES)
@pytest.mark.parametrize("biased", [True, False])
def test_a_product_and_its_gradients_are_pytorchs(shape: tuple[int, ...], size: int, biased: bool) -> None:
    x, weight, bias = drawn(shape, size)
    assert onednn_serves(x, weight)
    given = (x, weight, bias) if biased else (x, weight)
    ours, wide = linear(*given), F.linear(*(each.double() for each in given))
    scale = float(wide.detach().abs().max()) * 1e-6
    torch.testing.assert_close(ours.double(), wide, rtol=0, atol=8 * scale)
    grad = torch.randn_like(ours)
    for mine, theirs in zip(
        torch.autograd.grad(ours, given, grad), torch.autograd.grad(wide, given, grad.double()), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=float(theirs.abs().max()) * 1e-5)
    with torch.inference_mode():
        assert torch.equal(linear(*given), ours)


@pytest.mark.usefixtures("onednn")
def test_views_are_read_where_they_lie() -> None:
    x, weight = torch.randn(256, 300).T, torch.randn(1000, 512)[::2, ::2]
    torch.testing.assert_close(linear(x, weight), F.linear(x, weight), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(product(x, weight.T), x @ weight.T, rtol=1e-4, atol=1e-4)


class Recorded(TorchDispatchMode):
    """Record the weights that reach oneDNN."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.mkldnn._linear_pointwise.default:
            self.weights.append(args[1])
        return func(*args, **(kwargs or {}))


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda t: t.contiguous(),
    "transposed": lambda t: t.mT.contiguous().mT,
    "slice of wider rows": lambda t: torch.cat([t, t], -1)[:, : t.shape[1]],
    "slice of wider columns": lambda t: torch.cat([t.mT, t.mT], -1)[:, : t.shape[0]].mT,
    "every other row": lambda t: t.repeat_interleave(2, 0)[::2],
    "every other column": lambda t: t.repeat_interleave(2, 1)[:, ::2],
}


@pytest.mark.usefixtures("onednn")
@pytest.mark.parametrize("left_layout", LAYOUTS)
@pytest.mark.parametrize("right_layout", LAYOUTS)
def test_weights_whose_rows_lie_apart_are_copied_before_onednn_reads_them(left_layout: str, right_layout: str) -> None:
    torch.manual_seed(0)
    left, right = LAYOUTS[left_layout](torch.randn(460, 96)), LAYOUTS[right_layout](torch.randn(96, 96))
    with Recorded() as recorded:
        found = product(left, right)
    assert recorded.weights
    assert all(weight.is_contiguous() or weight.mT.is_contiguous() for weight in recorded.weights)
    torch.testing.assert_close(found.double(), left.double() @ right.double(), rtol=0, atol=1e-4)


@pytest.mark.usefixtures("onednn")
def test_only_the_gradients_that_are_wanted_are_computed() -> None:
    x, weight, bias = drawn(*SHAPES[0])
    linear(x.detach(), weight, bias.detach()).sum().backward()
    assert weight.grad is not None
    assert x.grad is None
    assert bias.grad is None


@pytest.mark.usefixtures("onednn")
def test_what_follows_may_write_over_a_product() -> None:
    x, weight, bias = drawn(*SHAPES[1])
    found = []
    for call in (linear, F.linear):
        (gradient,) = torch.autograd.grad(call(x, weight, bias).relu_().square().sum(), weight)
        found.append(gradient)
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4 * float(found[1].abs().max()))


@pytest.mark.usefixtures("onednn")
@pytest.mark.parametrize("cross", [False, True])
def test_blocks_learn_from_products_of_any_size(cross: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    source = MultiHeadAttention(32, 4) if cross else None
    block = TransformerBlock(MultiHeadAttention(32, 4), FeedForward(32, 64), cross=source)
    x, memory = torch.randn(2, 5, 32), torch.randn(2, 7, 32)
    gradients = []
    for least in (1, 2**60):
        monkeypatch.setattr(matmul, "_MIN_MULTIPLICATIONS", least)
        output = block.step(x, block.begin(memory))[0] if cross else block(x)
        gradients.append(torch.autograd.grad(output.square().sum(), list(block.parameters())))
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("onednn")
def test_second_derivatives_are_those_of_the_product() -> None:
    x, weight, bias = drawn(*SHAPES[0])
    found = []
    for call in (linear, F.linear):
        (first,) = torch.autograd.grad(call(x, weight, bias).square().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), weight)[0])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4 * float(found[1].abs().max()))


@pytest.mark.usefixtures("onednn")
def test_a_row_that_is_no_number_spoils_no_other() -> None:
    x, weight, _ = (each.detach() for each in drawn(*SHAPES[0]))
    clean = linear(x, weight)
    x[3] = torch.nan
    found = linear(x, weight)
    assert found[3].isnan().all()
    assert torch.equal(torch.cat([found[:3], found[4:]]), torch.cat([clean[:3], clean[4:]]))


@pytest.mark.usefixtures("onednn")
def test_what_it_cannot_serve_is_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, bias = (each.detach() for each in drawn(*SHAPES[0]))

    def never(*_: object) -> Tensor:
        raise AssertionError("not to be called")

    monkeypatch.setattr(matmul, "_product", never)
    with pytest.raises(AssertionError, match="not to be called"):
        linear(x, weight, bias)
    for half in (torch.float64, torch.bfloat16):
        assert linear(x.to(half), weight.to(half), bias.to(half)).dtype == half
    assert linear(x[:1], weight, bias).shape == (1, 512), "small"
    assert linear(x[:0], weight, bias).shape == (0, 512), "empty"
    assert linear(x.to("meta"), weight.to("meta")).is_meta
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(x, weight, bias).dtype == torch.bfloat16
    many = torch.vmap(lambda row: linear(row[None].expand(64, -1), weight))(x)
    assert many.shape == (64, 64, 512)
    _, along = torch.func.jvp(lambda given: linear(given, weight), (x,), (x,))
    torch.testing.assert_close(along, F.linear(x, weight))
    exported = torch.export.export(_Layer(), (x,))
    assert "mkldnn" not in str(exported.graph)


AVX512 = "Intel(R) Advanced Vector Extensions 512 (Intel(R) AVX-512) enabled processors"
OTHER = "Intel(R) Architecture processors"
"""What MKL says of processors that it does not know, whatever their registers."""


@pytest.mark.parametrize(
    ("capability", "processors", "favored"),
    [
        ("AVX512", OTHER, True),
        ("AVX512", AVX512, False),
        ("AVX512", "Intel(R) Advanced Vector Extensions 2 (Intel(R) AVX2) enabled processors", True),
        ("AVX512", None, False),
        ("AVX2", OTHER, False),
        ("DEFAULT", OTHER, False),
        ("SVE256", None, False),
    ],
)
def test_onednn_is_favored_where_mkl_leaves_wide_registers_unused(
    capability: str, processors: str | None, favored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(mkl, "optimized_for", lambda: processors)
    matmul._onednn_is_faster.cache_clear()
    assert matmul._onednn_is_faster() == (favored and torch._C._has_mkldnn)


def test_mkl_says_what_it_is_optimized_for() -> None:
    processors = mkl.optimized_for()
    if processors is None:
        pytest.skip("PyTorch without MKL, or one that does not export its version")
    assert processors.startswith("Intel(R)")
    assert len(processors) > len("Intel(R)")


@pytest.mark.parametrize("library", ["absent", "without the function"])
def test_an_mkl_that_cannot_be_asked_says_nothing(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(_: str) -> object:
        if library == "absent":
            raise OSError("libtorch_cpu.so: cannot open shared object file")
        return object()

    monkeypatch.setattr(mkl.ctypes, "CDLL", load)
    assert mkl.optimized_for.__wrapped__() is None


def test_an_operator_of_another_form_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(*_: object) -> Tensor:
        raise TypeError("one argument more")

    monkeypatch.setattr(matmul, "_product", other)
    monkeypatch.setattr(mkl, "leaves_wide_registers_unused", lambda: True)
    matmul._onednn_is_faster.cache_clear()
    assert not matmul._onednn_is_faster()
    x, weight, bias = drawn(*SHAPES[0])
    torch.testing.assert_close(linear(x, weight, bias), F.linear(x, weight, bias))


ITEMS = [
    ((2, 3, 70, 40), (2, 3, 40, 50)),
    ((3, 70, 40), (2, 1, 40, 50)),
    ((70, 40), (40, 50)),
    ((1, 1, 8, 3000), (1, 1, 3000, 8)),
]


@pytest.mark.usefixtures("onednn")
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize(("left", "right"), ITEMS)
def test_products_of_batches_are_pytorchs(
    left: tuple[int, ...], right: tuple[int, ...], gaps: bool, turned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matmul, "_MIN_MULTIPLICATIONS", 1)
    torch.manual_seed(0)
    one, other = (_laid_out(torch.randn(shape), gaps, turned) for shape in (left, right))
    wide = one.double() @ other.double()
    found = batched(one, other)
    assert found.shape == wide.shape
    torch.testing.assert_close(found.double(), wide, rtol=0, atol=1e-6 * float(wide.abs().max()))
    held = torch.empty(found.numel())
    assert torch.equal(batched(one, other, held.view), found)
    assert torch.equal(contiguous_rows(one), one)


def _laid_out(x: Tensor, gaps: bool, turned: bool) -> Tensor:
    """The same numbers, column by column or with a gap after each row or column."""
    x = x.mT.contiguous() if turned else x
    x = torch.cat([x, torch.full_like(x, torch.nan)], -1)[..., : x.shape[-1]] if gaps else x
    return x.mT if turned else x


@pytest.mark.usefixtures("onednn")
def test_sums_of_many_terms_round_no_more_than_twice_as_much_as_pytorchs() -> None:
    torch.manual_seed(0)
    left, right = torch.rand(64, 8192).softmax(-1), torch.rand(8192, 64) + 1
    assert matmul.onednn_favored(left, right)
    wide = left.double() @ right.double()
    ours, theirs = (float((x - wide).square().mean().sqrt()) for x in (batched(left, right), left @ right))
    assert ours <= 2 * theirs + 2**-24


def test_small_products_of_batches_lie_where_they_should() -> None:
    left, right, held = torch.randn(2, 3, 4, 5), torch.randn(5, 6), torch.empty(2 * 3 * 4 * 6)
    found = batched(left, right, held.view)
    assert found.data_ptr() == held.data_ptr()
    torch.testing.assert_close(found, left @ right)


@pytest.mark.usefixtures("onednn")
@pytest.mark.parametrize("many", [1, 2**40], ids=["by panels", "by oneDNN"])
def test_weights_that_are_kept_are_those_of_now(monkeypatch: pytest.MonkeyPatch, many: int) -> None:
    monkeypatch.setattr(matmul, "_MIN_FOR_PANELS", many)
    (x, weight, bias), more = drawn(*SHAPES[0]), 3.0
    with torch.inference_mode(), DecodingSession() as session:
        kept = cached_weight(session, "weight")
        before = [linear(x, weight, bias, kept) for _ in range(3)]
        weight.mul_(more)
        after = [linear(x, weight, bias, kept) for _ in range(3)]
    for found in before:
        torch.testing.assert_close(found, F.linear(x, weight / more, bias), rtol=1e-4, atol=1e-4)
    for found in after:
        torch.testing.assert_close(found, F.linear(x, weight, bias), rtol=1e-4, atol=1e-4)
    weight.data.zero_()
    assert torch.equal(linear(x, weight), torch.zeros(len(x), len(weight)))


@pytest.mark.usefixtures("onednn")
def test_large_products_of_a_decoding_go_by_panels_and_keep_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    paneled = matmul._packed_weight_class()
    if paneled is None:
        pytest.skip("no compiled kernels here")
    taken: list[Tensor] = []
    true = paneled.times
    monkeypatch.setattr(paneled, "times", lambda self, x, *given: taken.append(x) or true(self, x, *given))
    monkeypatch.setattr(matmul, "_MIN_FOR_PANELS", 2**23)
    x, weight, bias = drawn(*SHAPES[0])
    with torch.inference_mode(), DecodingSession() as session:
        kept = cached_weight(session, "weight")
        found = [linear(x * scale, weight, bias, kept) for scale in range(1, 6)]
    assert len(taken) == 4
    for scale, each in enumerate(found, 1):
        torch.testing.assert_close(each, F.linear(x * scale, weight, bias), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 7, 8, 64, 128, 129])
def test_without_onednn_a_kept_weight_is_packed_for_few_rows_only(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if not openmp.linked():
        pytest.skip("no kernels on PyTorch's threads")
    taken: list[int] = []
    true = PackedWeight.times
    monkeypatch.setattr(PackedWeight, "times", lambda self, x, *rest: taken.append(len(x)) or true(self, x, *rest))
    monkeypatch.setattr(matmul, "_packed_weight_class", lambda: PackedWeight)
    monkeypatch.setattr(matmul, "_onednn_is_faster", lambda: False)
    monkeypatch.setattr(matmul, "_MIN_ELEMENTS", 1)
    x, weight, bias = drawn((rows, 512), 2048)
    with torch.inference_mode(), DecodingSession() as session:
        kept = cached_weight(session, "weight")
        for scale in range(1, 4):
            found = linear(x * scale, weight, bias, kept)
            torch.testing.assert_close(found, F.linear(x * scale, weight, bias), rtol=1e-4, atol=1e-3)
        # Other rows of the same weight follow the same rule.
        linear(torch.randn(600, 512), weight, bias, kept)
    assert taken == ([rows] * 2 if matmul.suits_panels(rows) else [])


def test_no_private_operator_is_called_where_onednn_is_not_favored(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> Tensor:
        raise AssertionError("called")

    monkeypatch.setattr(matmul, "_onednn_is_faster", lambda: False)
    monkeypatch.setattr(matmul, "_product", forbidden)
    for shape, size in SHAPES:
        x, weight, bias = drawn(shape, size)
        linear(x, weight, bias).sum().backward()
        matmul.product(x.detach().flatten(0, -2), weight.detach().mT)
        batched(x.detach(), weight.detach().mT)
        with torch.inference_mode(), DecodingSession() as session:
            for _ in range(3):
                linear(x, weight, bias, cached_weight(session, "weight"))


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the weight of each product by oneDNN was packed."""
    given: list[bool] = []
    true = matmul._product
    monkeypatch.setattr(matmul, "_product", lambda x, w, b: given.append(w.is_mkldnn) or true(x, w, b))
    return given


@pytest.mark.usefixtures("onednn")
def test_only_weights_that_come_again_are_packed_and_computed_ones_never(packed: list[bool]) -> None:
    x, weight, _ = drawn(*SHAPES[0])
    with torch.inference_mode(), DecodingSession() as session:
        for _ in range(2):
            linear(x, weight[:], None, cached_weight(session, "part"))
            linear(x, weight * 2, None, cached_weight(session, "computed"))
    linear(x.detach(), weight.detach())
    assert packed == [False, False, True, False, False]


@pytest.mark.usefixtures("onednn")
def test_layers_keep_their_own_weights_in_a_session(packed: list[bool]) -> None:
    x, weight, _ = drawn(*SHAPES[0])
    layers = [nn.Linear(weight.shape[1], weight.shape[0]) for _ in range(2)]
    with torch.inference_mode(), DecodingSession() as session:
        for _ in range(2):
            for layer in layers:
                torch.testing.assert_close(apply_layer(layer, x, session), apply_layer(layer, x), rtol=1e-5, atol=1e-4)
    with torch.inference_mode(), DecodingSession() as session:
        apply_layer(layers[0], x, session)
    assert packed == [False] * 4 + [True, False] * 2 + [False]


@pytest.mark.usefixtures("onednn")
def test_a_replaced_parameter_is_packed_anew() -> None:
    x, weight, _ = drawn(*SHAPES[0])
    layer = nn.Linear(weight.shape[1], weight.shape[0])
    with torch.inference_mode(), DecodingSession() as session:
        for change in ("none", "parameter", "data"):
            with torch.inference_mode(False), torch.no_grad():
                if change == "parameter":
                    layer.weight = torch.nn.Parameter(torch.randn_like(weight))
                elif change == "data":
                    layer.weight.data = torch.randn_like(weight)
            for _ in range(3):
                expected = F.linear(x, layer.weight, layer.bias)
                torch.testing.assert_close(apply_layer(layer, x, session), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.usefixtures("onednn")
def test_a_session_does_not_touch_gradients(packed: list[bool]) -> None:
    x, weight, _ = drawn(*SHAPES[0])
    with DecodingSession() as session:
        for _ in range(3):
            weight.grad = None
            linear(x, weight, None, cached_weight(session, "weight")).sum().backward()
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, x.detach().sum(0).expand_as(weight), rtol=1e-4, atol=1e-3)
    assert not any(packed)


@pytest.mark.usefixtures("onednn")
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("lies", ["every other", "repeated", "one for all", "negated"])
def test_a_bias_may_lie_as_it_likes(lies: str, grad: bool) -> None:
    """The private operator reads contiguous numbers, and reads beyond the bias if it is not contiguous."""
    x, weight, _ = drawn((64, 256), 512)
    bias = {
        "every other": torch.randn(1024)[::2],
        "repeated": torch.randn(1).expand(512),
        "one for all": torch.randn(1),
        "negated": torch._neg_view(torch.randn(512)),
    }[lies]
    with torch.set_grad_enabled(grad):
        torch.testing.assert_close(linear(x, weight, bias), F.linear(x, weight, bias), rtol=1e-5, atol=1e-4)


@pytest.mark.usefixtures("onednn")
def test_rows_of_a_weight_may_overlap() -> None:
    x, series = torch.randn(64, 256), torch.randn(600)
    weight = series.unfold(0, 256, 1)
    torch.testing.assert_close(linear(x, weight), F.linear(x, weight), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(product(x, weight.mT), x @ weight.mT, rtol=1e-5, atol=1e-4)


@pytest.mark.usefixtures("onednn")
def test_what_does_not_fit_gets_pytorchs_message() -> None:
    """The private operator reports that it could not create a primitive descriptor."""
    x, weight, bias = (each.detach() for each in drawn((512, 256), 512))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        linear(x[:, 1:], weight)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        product(x[:, 1:], weight.mT)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        batched(x[:, 1:], weight.mT)
    with pytest.raises(RuntimeError, match="size"):
        linear(x, weight, bias[1:])


@pytest.mark.usefixtures("onednn")
def test_no_product_adds_up_more_terms_than_stay_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain of n terms has √(n/256) times the error of MKL's blocks: 1.5, the contract's limit, at 576."""
    met, times = [], matmul._product

    def spied(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        met.append(x.shape[-1])
        return times(x, weight, bias)

    monkeypatch.setattr(matmul, "_product", spied)
    left, right = torch.randn(130, 2500), torch.randn(2500, 64)
    torch.testing.assert_close(batched(left, right), left @ right, rtol=1e-5, atol=1e-3)
    assert max(met) < 576
    assert sum(met) == 2500
