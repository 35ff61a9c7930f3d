"""No layer reads numbers where there are none: on meta, fake, compiled in one graph, exported, in ONNX, under vmap."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.nn.layer_calls import Call, layers
from tests.pairs import fast, in_turn
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import qkv
from qkv.errors import UnsupportedError

pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning"),  # PyTorch's compiler reads it
    pytest.mark.filterwarnings("ignore:The tensor attributes .*_flat_weights:UserWarning"),  # of any exported nn.GRU
]
NO_TENSORS = ("kernel.start_from", "from_torch", "score_module")
NAMES = [name for name in layers() if name not in NO_TENSORS]
READS = "copy.remember"
"""Its result is as wide as the largest id says."""
REFUSED = {("recurrent", "vmap"), *((READS, how) for how in ("vmap", "meta", "fake"))}
PYTORCH_REFUSES = {("recurrent", "compile"), (READS, "compile"), (READS, "ONNX"), ("heads, sparse", "ONNX")}
"""A GRU in a graph without breaks; a number of a tensor there, unless the compiler is set to capture them, and in ONNX;
the projection of an entmax, in ONNX's operators.
"""


def tensors_of(x: Any) -> list[Tensor]:
    """Return all tensors in what a layer returns."""
    if isinstance(x, Tensor):
        return [x]
    if isinstance(x, (list, tuple)):
        return [tensor for part in x for tensor in tensors_of(part)]
    fields = vars(x) if dataclasses.is_dataclass(x) else {}  # without free space for later keys
    return [tensor for name, part in fields.items() if name != "buffer" for tensor in tensors_of(part)]


class Calls(nn.Module):
    """A call as a module of its tensors, which is what can be exported and mapped."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call, self.arguments = call
        owner = getattr(self.call, "__self__", self.call)
        self.owner = owner.eval() if isinstance(owner, nn.Module) else None  # nothing is dropped at random
        self.tensors = {name: x for name, x in self.arguments.items() if isinstance(x, Tensor)}

    def forward(self, *tensors: Tensor) -> list[Tensor]:
        """Call the layer with other tensors in place of its own."""
        return tensors_of(self.call(**{**self.arguments, **dict(zip(self.tensors, tensors, strict=True))}))


def compiled(calls: Calls) -> list[Tensor]:
    torch.compiler.reset()
    run = torch.compile(lambda tensors: calls.call(**{**calls.arguments, **tensors}), fullgraph=True, backend="eager")
    return tensors_of(run(calls.tensors))


def exported(calls: Calls) -> list[Tensor]:
    given = tuple(calls.tensors.values())
    return tensors_of(torch.export.export(calls, given).module()(*given))


def in_onnx(calls: Calls) -> list[Tensor]:
    onnxruntime = pytest.importorskip("onnxruntime")
    given = tuple(calls.tensors.values())
    program = torch.onnx.export(calls, given, dynamo=True, verbose=False)
    assert program is not None
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    by_name = dict(zip((part.name for part in session.get_inputs()), given, strict=False))
    return [torch.from_numpy(x) for x in session.run(None, {name: x.numpy() for name, x in by_name.items()})]


def mapped(calls: Calls) -> list[Tensor]:
    """Map each tensor in turn; return the results of the first of two equal samples, of the last one."""
    given, results = list(calls.tensors.values()), list[Tensor]()
    for index in range(len(given)):
        dims = tuple(0 if place == index else None for place in range(len(given)))
        sample = [torch.stack([x, x]) if place == index else x for place, x in enumerate(given)]
        results = [x[0] for x in torch.vmap(lambda *x: tuple(calls(*x)), in_dims=dims)(*sample)]
        expected = calls(*given)
        torch.testing.assert_close(results, expected, rtol=1e-4, atol=1e-5, equal_nan=True)
    return results


def made() -> dict[str, Call]:
    return {name: make() for name, make in layers().items() if name in NAMES}


GRAPHS: dict[str, Callable[[Calls], list[Tensor]]] = {"compile": compiled, "export": exported}


def expect(name: str, how: str, run: Callable[[], list[Tensor]]) -> list[Tensor] | None:
    """Return what a layer gives; None if it refuses as it must."""
    if (name, how) in REFUSED:
        with pytest.raises(UnsupportedError):
            run()
        return None
    return run()


def described(tensors: list[Tensor]) -> list[Any]:
    return [(x.shape, x.dtype) for x in tensors]


@pytest.mark.parametrize("how", ["meta", "fake"])
@pytest.mark.parametrize("gradient", [True, False])
def test_layers_give_shapes_where_there_are_no_numbers(how: str, gradient: bool) -> None:
    with torch.set_grad_enabled(gradient):
        expected = {name: described(tensors_of(call(**given))) for name, (call, given) in made().items()}
        with torch.device("meta") if how == "meta" else FakeTensorMode():
            for name, (call, given) in made().items():
                results = expect(name, how, lambda: tensors_of(call(**given)))  # noqa: B023
                assert results is None or described(results) == expected[name], name


@pytest.mark.parametrize("gradient", [True, False])
def test_layers_are_mapped(gradient: bool) -> None:
    with torch.set_grad_enabled(gradient):
        for name, call in made().items():
            expect(name, "vmap", lambda: mapped(Calls(call)))  # noqa: B023


@pytest.mark.compiler
@pytest.mark.parametrize(("name", "how"), in_turn(NAMES, GRAPHS, every=4))
def test_layers_are_one_graph(name: str, how: str) -> None:
    with torch.no_grad():  # keys and values that a call is given are constants of its graph
        calls = Calls(layers()[name]())
    if (name, how) in PYTORCH_REFUSES:
        pytest.skip("PyTorch's own layer is refused too")
    results = expect(name, how, lambda: GRAPHS[how](calls))
    if results is not None:
        torch.testing.assert_close(results, calls(*calls.tensors.values()), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_layers_are_exported_to_onnx(name: str) -> None:
    pytest.importorskip("onnxscript")
    with torch.no_grad():
        calls = Calls(layers()[name]())
    if (name, "ONNX") in PYTORCH_REFUSES:
        pytest.skip("ONNX has no such operator")
    results = expect(name, "ONNX", lambda: in_onnx(calls))
    if results is not None:
        expected = [x.detach() for x in calls(*calls.tensors.values())]
        torch.testing.assert_close(results, expected, rtol=1e-3, atol=1e-4)


def test_every_layer_is_called() -> None:
    """Directly, or as a part of another."""
    owners = [getattr(call, "__self__", call) for call, _ in (make() for make in layers().values())]
    called = {type(part) for owner in owners if isinstance(owner, nn.Module) for part in owner.modules()}
    public = {getattr(qkv.nn, name) for name in qkv.nn.__all__}
    modules = {cls for cls in public if isinstance(cls, type) and issubclass(cls, nn.Module)}
    abstract = {qkv.nn.BiasModule, qkv.nn.NormalizerModule, qkv.nn.ScoreModule}
    assert modules - abstract <= called, modules - called


@pytest.mark.compiler
def test_a_graph_may_break_where_numbers_are_read() -> None:
    calls = Calls(layers()[READS]())
    torch.compiler.reset()
    results = tensors_of(torch.compile(calls.call, backend="eager")(**calls.arguments))
    torch.testing.assert_close(results, calls(*calls.tensors.values()))


MASKED = {
    "nothing hidden": torch.arange(25.0).view(5, 5),
    "hidden": torch.zeros(5, 5).masked_fill(torch.ones(5, 5).triu(1) > 0, -torch.inf),
    "both": torch.arange(25.0).view(5, 5).masked_fill(torch.ones(5, 5).triu(1) > 0, -torch.inf),
}


@pytest.mark.compiler
@pytest.mark.parametrize("name", fast(MASKED, "both"))
@pytest.mark.parametrize("score", ["scaled_dot", "cosine"])
def test_pytorchs_layer_with_our_attention_is_one_graph(name: str, score: str) -> None:
    """The layer makes a float mask of every mask, in the graph: the same graph serves all of them."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    layer.self_attn = qkv.nn.TorchMultiheadAttention(qkv.nn.MultiHeadAttention(8, 2, score=score))
    x, mask = torch.randn(2, 5, 8), MASKED[name]
    program = torch.export.export(layer, (x, MASKED["nothing hidden"])).module()
    torch.testing.assert_close(program(x, mask), layer(x, mask))
    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(layer, fullgraph=True, backend="eager")(x, mask), layer(x, mask))
    assert layer.to("meta")(x.to("meta"), mask.to("meta")).shape == x.shape


def test_a_mask_that_learns_from_zero_has_a_gradient() -> None:
    attend = qkv.nn.TorchMultiheadAttention(qkv.nn.MultiHeadAttention(8, 2))
    x, mask = torch.randn(2, 5, 8), torch.zeros(5, 5, requires_grad=True)
    (gradient,) = torch.autograd.grad(attend(x, x, x, attn_mask=mask)[0].square().sum(), mask)
    assert gradient.abs().max() > 0


@pytest.mark.parametrize("normalizer", [qkv.normalizers.Mean(), qkv.normalizers.Sigmoid(), qkv.normalizers.Identity()])
def test_a_float_mask_hides_under_every_normalizer(normalizer: Any) -> None:
    """Also beside numbers that it adds."""
    attention = qkv.nn.MultiHeadAttention(8, 2, normalizer=normalizer)
    attend, x = qkv.nn.TorchMultiheadAttention(attention), torch.randn(2, 5, 8)
    added, hidden = MASKED["nothing hidden"], torch.ones(5, 5).triu(1) > 0
    expected = attention(x, mask=~hidden, bias=added)
    torch.testing.assert_close(attend(x, x, x, attn_mask=MASKED["both"])[0], expected)
