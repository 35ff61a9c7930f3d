"""The public functions through eager, compiled, exported, vmapped, forked and threaded calls."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from tests.contract.judge import legal, parameters
from tests.contract.mechanisms import HEADS, NORMALIZER, NORMALIZERS, SCORE, SCORES, NormalizerCase, ScoreCase
from tests.pairs import fast, in_turn
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.fx.experimental.proxy_tensor import make_fx

import qkv
from qkv.errors import QkvError, UnsupportedError
from qkv.masks import causal, documents, lengths, window
from qkv.normalizers import Entmax, Hard, Identity, Mean, Sigmoid, Softmax, Sparsemax, Sum
from qkv.scores import Additive, Bilinear, Boxcar, Concat, Cosine, Epanechnikov, Gaussian, ScaledDot, SquaredDistance

B, H, Q, K, D, V = 2, 3, 7, 9, 4, 5


@dataclass
class Case:
    """A call, and the backends to run it on."""

    given: dict[str, Any] = field(default_factory=dict)
    backends: tuple[str, ...] = ("reference", "blocked")


CASES = {
    "scaled dot": Case(backends=("reference", "sdpa", "blocked")),
    "causal": Case({"mask": causal()}, ("reference", "sdpa", "blocked")),
    "lengths": Case({"mask": lengths(torch.tensor([4, K]))}, ("reference", "sdpa", "blocked")),
    "cosine, window": Case({"score": Cosine(3.0), "mask": window(2, 1)}, ("reference", "blocked")),
    "bilinear, bias": Case({"score": Bilinear(torch.eye(D)), "bias": torch.randn(H, Q, K)}),
    "additive, sink": Case({"score": Additive(torch.randn(D)), "normalizer": Softmax(torch.zeros(H))}),
    "concat, mean": Case({"score": Concat(torch.randn(D), torch.randn(D)), "normalizer": Mean()}),
    "distance, either mask": Case({"score": SquaredDistance(), "mask": window(1, 0) | lengths(torch.tensor([2, 5]))}),
    "gaussian, dense": Case({"score": Gaussian(2.0), "mask": torch.arange(Q * K).view(Q, K) % 3 > 0}),
    "boxcar, offsets": Case({"score": Boxcar(3.0), "mask": causal(torch.tensor([1, 3]))}),
    "triangle": Case({"score": Epanechnikov(4.0, power=1), "normalizer": Sum()}),
    "softcap, entmax": Case({"score": ScaledDot(softcap=2.0), "normalizer": Entmax(1.3)}),
    "learned alpha": Case({"normalizer": Entmax(torch.tensor([1.2, 1.5, 2.0]))}),
    "sparsemax, not causal": Case({"normalizer": Sparsemax(), "mask": ~causal()}),
    "sigmoid": Case({"normalizer": Sigmoid(), "mask": documents(torch.arange(Q) // 3, torch.arange(K) // 4)}),
    "hard": Case({"normalizer": Hard()}),
    "linear": Case({"score": ScaledDot(), "normalizer": Identity()}, ("reference", "linear", "blocked")),
}
PAIRS = [(name, backend) for name, case in CASES.items() for backend in case.backends]
FEW = ("causal", "linear")
"""These run on every backend in the fast suite; the others on the one that `auto` may choose instead of `reference`,
which
is plain PyTorch: a compilation takes a second.
"""


SEVERAL_CORES = ("additive, sink", "gaussian, dense")
"""Compiled with gradients in the fast suite, besides `FEW`: other masks and normalizers are exported there."""


def _few(*names: str, on_every_backend: Sequence[str] = FEW) -> Any:
    def marks(name: str, backend: str) -> Any:
        is_fast = name in on_every_backend or (name in names and backend == CASES[name].backends[1])
        return () if is_fast else pytest.mark.slow

    parameters = [pytest.param(*pair, id=" by ".join(pair), marks=marks(*pair)) for pair in PAIRS]
    return pytest.mark.parametrize(("name", "backend"), parameters)


SLOW_REFERENCE = pytest.param("reference", marks=pytest.mark.slow)
SLOW_SDPA = pytest.param("sdpa", marks=pytest.mark.slow)


def tensors(batch: int = B, queries: int = Q, keys: int = K, gradient: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    shapes = ((batch, H, queries, D), (batch, H, keys, D), (batch, H, keys, V))
    return tuple(torch.randn(shape, requires_grad=gradient) for shape in shapes)


def attend(name: str, backend: str) -> Callable[..., Tensor]:
    given = CASES[name].given
    return lambda query, key, value: qkv.attention(query, key, value, backend=backend, **given)


def with_gradients(function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> list[Tensor]:
    output = function(*inputs)
    gradients = torch.autograd.grad(output.square().sum(), inputs, allow_unused=True, materialize_grads=True)
    return [output, *gradients]


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    torch.compiler.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager", **options)


@pytest.mark.compiler
@_few(*SEVERAL_CORES, "linear", on_every_backend=["causal"])
def test_a_compiled_call_gives_what_the_eager_one_gives(name: str, backend: str) -> None:
    function, inputs = attend(name, backend), tensors()
    traced = with_gradients(compiled(function), inputs)
    # When a program is traced, unit vectors are divided by another formula.
    same = backend == "blocked" and not isinstance(CASES[name].given.get("score"), Cosine)
    for one, other in zip(with_gradients(function, inputs), traced, strict=True):
        if same:
            assert torch.equal(one, other)
        else:
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("backend", [SLOW_REFERENCE, SLOW_SDPA, pytest.param("blocked", marks=pytest.mark.slow)])
def test_one_compilation_serves_many_sizes(backend: str) -> None:
    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")

    def attention(query: Tensor, key: Tensor, value: Tensor, real: Tensor) -> Tensor:
        # In a graph PyTorch's kernel serves masks that are the same for every query.
        mask = lengths(real) if backend == "sdpa" else causal(2) & lengths(real)
        return qkv.attention(query, key, value, mask=mask, backend=backend)

    function = torch.compile(attention, fullgraph=True, dynamic=True, backend=counter)
    first = 0
    for batch, queries, keys in ((2, 7, 9), (3, 12, 5), (5, 33, 70)):
        inputs = tensors(batch, queries, keys)
        real = torch.arange(1, batch + 1)
        traced = with_gradients(lambda *qkv_: function(*qkv_, real), inputs)  # noqa: B023
        eager = with_gradients(lambda *qkv_: attention(*qkv_, real), inputs)  # noqa: B023
        torch.testing.assert_close(traced, eager)
        first = first or counter.frame_count
    assert counter.frame_count == first


@pytest.mark.slow
def test_auto_chooses_under_dynamic_shapes() -> None:
    function = compiled(lambda q, k, v: qkv.attention(q, k, v, score=Gaussian(2.0)), dynamic=True)
    for size in (5, 40, 700):
        inputs = tensors(1, size, size, gradient=False)
        torch.testing.assert_close(function(*inputs), qkv.attention(*inputs, score=Gaussian(2.0)))


@pytest.mark.compiler
@pytest.mark.parametrize(
    "settings",
    [{"score": Cosine(torch.rand(H))}, {"normalizer": Sigmoid(torch.randn(H))}, {"bias": torch.randn(H, 1, 1)}],
    ids=lambda settings: next(iter(settings)),
)
def test_numbers_per_head_of_a_layer_fit_under_dynamic_shapes(settings: dict[str, Any]) -> None:
    """The heads of the layer are one number, those of a tensor that it holds another, which varies."""
    bias = settings.pop("bias", None)
    layer = qkv.nn.MultiHeadAttention(4 * H, H, key_heads=1, **settings)
    function = compiled(lambda x: layer(x, bias=bias), dynamic=True)
    for size in (3, 6):
        x = torch.randn(2, size, 4 * H)
        torch.testing.assert_close(function(x), layer(x, bias=bias), rtol=1e-4, atol=1e-5)


@pytest.mark.compiler
def test_a_comparison_of_sizes_turns_grouping_on() -> None:
    def attend(query: Tensor, key: Tensor) -> Tensor:
        return qkv.attention(query, key, key, enable_gqa=query.shape[1] != key.shape[1])

    query, key = torch.randn(2, 4, 5, 3), torch.randn(2, 2, 7, 3)
    torch.testing.assert_close(compiled(attend, dynamic=True)(query, key), attend(query, key))


@pytest.mark.compiler
@pytest.mark.parametrize("backend", [SLOW_REFERENCE, "blocked"])
def test_values_are_arguments_of_a_compiled_function(backend: str) -> None:
    function = compiled(
        lambda query, key, value, score, normalizer, mask: qkv.attention(
            query, key, value, score=score, normalizer=normalizer, mask=mask, backend=backend
        )
    )
    inputs = tensors()
    vector = torch.randn(D, requires_grad=True)
    score, normalizer, mask = Additive(vector), Softmax(torch.zeros(H)), causal(1) & lengths(torch.tensor([4, K]))
    traced = function(*inputs, score, normalizer, mask)
    eager = qkv.attention(*inputs, score=score, normalizer=normalizer, mask=mask, backend=backend)
    torch.testing.assert_close(traced, eager)
    gradients = (torch.autograd.grad(output.square().sum(), (vector, *inputs)) for output in (traced, eager))
    torch.testing.assert_close(*gradients)


class Attends(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


@pytest.mark.compiler
@_few(*[*CASES][::2], on_every_backend=["causal"])
def test_an_exported_program_gives_what_the_call_gives(name: str, backend: str) -> None:
    function, inputs = attend(name, backend), tensors(gradient=False)
    program = torch.export.export(Attends(function), inputs)
    torch.testing.assert_close(program.module()(*inputs), function(*inputs))


@pytest.mark.compiler
@pytest.mark.parametrize("backend", [SLOW_REFERENCE, "sdpa", "blocked"])
def test_an_exported_program_serves_many_sizes(backend: str) -> None:
    class Masked(nn.Module):
        def forward(self, query: Tensor, key: Tensor, value: Tensor, real: Tensor) -> Tensor:
            return qkv.attention(query, key, value, mask=lengths(real), backend=backend)

    batch, queries, keys = (torch.export.Dim(name, min=2) for name in ("batch", "queries", "keys"))
    shapes = {
        "query": {0: batch, 2: queries},
        "key": {0: batch, 2: keys},
        "value": {0: batch, 2: keys},
        "real": {0: batch},
    }
    program = torch.export.export(Masked(), (*tensors(gradient=False), torch.tensor([3, 5])), dynamic_shapes=shapes)
    other = (*tensors(4, 20, 30, gradient=False), torch.tensor([3, 30, 1, 7]))
    torch.testing.assert_close(program.module()(*other), Masked()(*other))


@pytest.mark.compiler
@pytest.mark.parametrize("backend", ["reference", "blocked"])
def test_values_are_arguments_of_an_exported_program(backend: str) -> None:
    class Masked(nn.Module):
        def forward(self, query: Tensor, key: Tensor, value: Tensor, score: Any, mask: Any) -> Tensor:
            return qkv.attention(query, key, value, score=score, mask=mask, backend=backend)

    score, mask = ScaledDot(torch.ones(H)), causal() & lengths(torch.tensor([4, K]))
    inputs = (*tensors(gradient=False), score, mask)
    program = torch.export.export(Masked(), inputs)
    torch.testing.assert_close(program.module()(*inputs), Masked()(*inputs))


@pytest.mark.compiler
@pytest.mark.parametrize("backend", [SLOW_REFERENCE, "blocked"])
def test_weights_and_state_are_traced_too(backend: str) -> None:
    """In one graph: each takes the compiler seconds."""

    def function(*inputs: Tensor) -> tuple[Tensor, ...]:
        output, state = qkv.attention_with_state(*inputs, mask=causal(), backend=backend)
        return *qkv.attention_with_weights(*inputs, mask=causal(), backend=backend), output, state.lse

    inputs = tensors()
    torch.testing.assert_close(compiled(function)(*inputs), function(*inputs))


def looped(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    return torch.stack([function(*item) for item in zip(*inputs, strict=True)])


@pytest.mark.parametrize(("name", "backend"), [pytest.param(*pair, id=" by ".join(pair)) for pair in PAIRS])
def test_vmap_gives_what_a_loop_gives(name: str, backend: str) -> None:
    given = dict(CASES[name].given)
    if name in ("lengths", "distance, either mask", "boxcar, offsets"):
        given.pop("mask")  # lengths per item of a batch dimension that vmap hides
    inputs = tensors()

    def function(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return qkv.attention(query, key, value, backend=backend, **given)

    if backend == "sdpa":
        with pytest.raises(UnsupportedError, match="vmap"):
            torch.vmap(function)(*inputs)
        backend = "auto"
    traced = with_gradients(torch.vmap(function), inputs)
    torch.testing.assert_close(traced, with_gradients(lambda *each: looped(function, *each), inputs))


OWN = NORMALIZER["sum"], NORMALIZER["softmax"]
EVERY_SCORE = [(score, next(each for each in OWN if legal(score, each))) for score in SCORES]
EVERY_NORMALIZER = [(SCORE["gaussian" if each.needs_non_negative else "scaled_dot"], each) for each in NORMALIZERS]


@pytest.mark.parametrize("gradient", [True, False], ids=["gradient", "no gradient"])
@pytest.mark.parametrize(
    ("backend", "score", "normalizer"),
    [
        pytest.param(backend, *pair, id=" × ".join([backend, *(each.name for each in pair)]))
        for backend, pair in product(["reference", "blocked"], EVERY_SCORE + EVERY_NORMALIZER)
        if (backend, pair[0].name) != ("blocked", "learned")  # whose tiles are not recomputed under vmap
    ],
)
def test_every_mechanism_can_be_mapped(
    backend: str, score: ScoreCase, normalizer: NormalizerCase, gradient: bool
) -> None:
    """Without a warning; numbers that need no gradient may be changed in place, which `vmap` has fewer rules for."""
    query, key = (torch.randn(B, HEADS, 3, width) for width in (score.width, score.key_width))
    inputs = tuple(x.requires_grad_(gradient) for x in (query, key, torch.randn(B, HEADS, 3, V)))
    options = {
        "score": score.build(parameters(score, torch.Generator().manual_seed(0))),
        "normalizer": normalizer.build({name: torch.full(shape, 1.5) for name, shape in normalizer.shapes.items()}),
    }

    def function(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return qkv.attention(query, key, value, backend=backend, **options)

    looping = partial(looped, function)
    both = [with_gradients(each, inputs) if gradient else [each(*inputs)] for each in (torch.vmap(function), looping)]
    torch.testing.assert_close(*both)


@pytest.mark.parametrize("mapped", [0, 1, 2])
@pytest.mark.parametrize(("score", "normalizer"), [pytest.param(*pair, id=pair[0].name) for pair in EVERY_SCORE])
def test_what_is_not_mapped_has_gradients_too(score: ScoreCase, normalizer: NormalizerCase, mapped: int) -> None:
    """Of query, key and value, and of the score's parameters."""
    widths = score.width, score.key_width, V
    inputs = [torch.randn(B, HEADS, 3, width, dtype=torch.float64, requires_grad=True) for width in widths]
    given = parameters(score, torch.Generator().manual_seed(0))
    numbers = {name: x.double().requires_grad_() for name, x in given.items()}
    leaves = [*inputs, *numbers.values()]
    dims = tuple(0 if place == mapped else None for place in range(3))

    def function(*each: Tensor) -> Tensor:
        return qkv.attention(*each, score=score.build(numbers), normalizer=normalizer.build({}))

    items = ([x[i] if place == mapped else x for place, x in enumerate(inputs)] for i in range(B))
    looped_output = torch.stack([function(*each) for each in items])
    weights = torch.randn_like(looped_output)
    both = (torch.vmap(function, in_dims=dims)(*inputs), looped_output)
    found, expected = (
        [x, *torch.autograd.grad(x, leaves, weights, allow_unused=True, materialize_grads=True)] for x in both
    )
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("backend", ["reference", "blocked"])
def test_vmap_maps_what_it_is_told_to(backend: str) -> None:
    query, key, value = tensors()
    real, bandwidth = torch.tensor([3, 8]), torch.tensor([0.5, 2.0])

    def function(query: Tensor, key: Tensor, real: Tensor, bandwidth: Tensor) -> Tensor:
        mask = lengths(real) | window(1, 0)
        return qkv.attention(query, key, value[0], score=SquaredDistance(bandwidth), mask=mask, backend=backend)

    traced = torch.vmap(function, in_dims=(0, None, 0, 0))(query, key[0], real, bandwidth)
    expected = torch.stack([function(query[i], key[0], real[i], bandwidth[i]) for i in range(B)])
    torch.testing.assert_close(traced, expected)


@pytest.mark.parametrize("backend", ["reference", "blocked"])
def test_gradients_per_item(backend: str) -> None:
    inputs = tensors(gradient=False)

    def loss(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return qkv.attention(query, key, value, mask=causal(), backend=backend).square().sum()

    per_item = torch.vmap(torch.func.grad(loss, argnums=(0, 1, 2)), in_dims=(0, None, 0))
    found = per_item(inputs[0], inputs[1][0], inputs[2])
    for i in range(B):
        expected = torch.func.grad(loss, argnums=(0, 1, 2))(inputs[0][i], inputs[1][0], inputs[2][i])
        torch.testing.assert_close(tuple(g[i] for g in found), expected)


@pytest.mark.compiler
def test_a_second_derivative_of_a_compiled_call_names_the_reference() -> None:
    inputs = tensors()
    output = compiled(attend("scaled dot", "blocked"))(*inputs)

    def twice() -> None:
        (gradient,) = torch.autograd.grad(output.square().sum(), inputs[0], create_graph=True)
        torch.autograd.grad(gradient.sum(), inputs[0])

    # torch.compile raises its own error before the operator's, unless it leaves the graph to autograd.
    with pytest.raises((UnsupportedError, RuntimeError), match=r'backend="reference"|aot_autograd|double backward'):
        twice()


@pytest.mark.parametrize("backend", ["reference", "sdpa", "blocked"])
def test_threads_do_not_disturb_each_other(backend: str) -> None:
    calls = [(attend("causal", backend), tensors()) for _ in range(16)]
    expected = [with_gradients(function, inputs) for function, inputs in calls]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda call: with_gradients(*call), calls))
    for one, other in zip(expected, found, strict=True):
        assert all(map(torch.equal, one, other))


@pytest.mark.forks
@pytest.mark.parametrize("backend", ["reference", "sdpa", "blocked"])
def test_a_forked_child_computes_as_its_parent(backend: str) -> None:
    function, inputs = attend("causal", backend), tensors()
    expected = with_gradients(function, inputs)
    child = os.fork()
    if child == 0:
        try:
            same = all(torch.equal(x, y) for x, y in zip(with_gradients(function, inputs), expected, strict=True))
            os._exit(0 if same else 1)
        finally:  # an error must not let the child go on with the other tests
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(
    ("score", "normalizer"),
    [(Additive(torch.linspace(-1, 1, D)), None), (Gaussian(3.0), None), (Boxcar(6.0), None), (ScaledDot(), Hard())],
)
def test_a_graph_of_operators_gives_what_the_call_gives(score: Any, normalizer: Any) -> None:
    """Our own kernels are not operators: a graph of the traced operators would miss them."""

    def attends(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return qkv.attention(query, key, value, score=score, normalizer=normalizer)

    others = tuple(x + 1 for x in tensors(gradient=False))
    torch.testing.assert_close(make_fx(attends)(*tensors(gradient=False))(*others), attends(*others))


SYMBOLIC = ("lengths", "additive, sink", "gaussian, dense")
"""Numbers of a mask among the inputs, those of score and normalizer, and a mask of pairs; a graph takes seconds."""


@pytest.mark.parametrize("name", fast(CASES, *SYMBOLIC))
def test_a_graph_with_varying_sizes_gives_what_the_call_gives(name: str) -> None:
    """Also where the mask is among the inputs, whose numbers must not decide what the graph is."""
    given = CASES[name].given
    parts, structure = torch.utils._pytree.tree_flatten(given)
    held = [x for x in parts if isinstance(x, Tensor)]

    def attends(query: Tensor, key: Tensor, value: Tensor, *tensors: Tensor) -> Tensor:
        new = iter(tensors)
        filled = [next(new) if isinstance(x, Tensor) else x for x in parts]
        return qkv.attention(query, key, value, **torch.utils._pytree.tree_unflatten(filled, structure))

    graph = make_fx(attends, tracing_mode="symbolic")(*tensors(gradient=False), *held)
    other = tensors(gradient=False)
    torch.testing.assert_close(graph(*other, *held), attends(*other, *held))


def test_the_sigmoid_of_a_traced_graph_counts_the_keys_of_its_call() -> None:
    graph = make_fx(lambda *x: qkv.attention(*x, normalizer=Sigmoid()), tracing_mode="symbolic")(
        *tensors(gradient=False)
    )
    other = tensors(B, 9, 21, gradient=False)
    torch.testing.assert_close(graph(*other), qkv.attention(*other, normalizer=Sigmoid()))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("how", ["make_fx", "jit"])
def test_documents_of_a_traced_graph_are_those_of_its_call(how: str) -> None:
    """Ids that form runs lower to bounds; a graph of such ids must serve others."""

    def attends(query: Tensor, key: Tensor, value: Tensor, ids: Tensor) -> Tensor:
        return qkv.attention(query, key, value, mask=documents(ids))

    runs, scattered = torch.arange(Q) // 3, torch.arange(Q) % 3
    inputs = tensors(B, Q, Q, gradient=False)
    trace = make_fx(attends) if how == "make_fx" else lambda *x: torch.jit.trace(attends, x, check_trace=False)
    graph = trace(*inputs, runs)
    torch.testing.assert_close(graph(*inputs, scattered), attends(*inputs, scattered))


@pytest.mark.parametrize(("name", "gradient"), in_turn(CASES, (False, True)))
def test_tensors_without_numbers_give_the_shapes_of_the_call(name: str, gradient: bool) -> None:
    """On the device `meta` nothing is computed, by any kernel."""
    given = torch.utils._pytree.tree_map_only(Tensor, lambda x: x.to("meta"), CASES[name].given)
    inputs = tuple(x.detach().to("meta").requires_grad_(gradient) for x in tensors())
    for more in ({}, {"dropout": 0.2}):
        output = qkv.attention(*inputs, **given, **more)
        assert output.is_meta
        assert output.shape == (B, H, Q, V)
        if gradient:
            found = torch.autograd.grad(output.sum(), inputs, materialize_grads=True)
            assert [x.shape for x in found] == [x.shape for x in inputs]


VARYING = {
    "hard": {"normalizer": Hard()},
    "sigmoid": {"normalizer": Sigmoid()},
    "sigmoid, causal": {"normalizer": Sigmoid(), "mask": causal()},
    "mean": {"normalizer": Mean()},
    "either": {"mask": causal() | lengths(3)},
    "causal": {"mask": causal()},
    "causal from the end": {"mask": causal(align="end")},
}


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("name", "backend"),
    [
        *in_turn(VARYING, ["blocked", "reference"]),
    ],
)
def test_a_program_exported_with_two_varying_lengths_serves_others(name: str, backend: str) -> None:
    """With more queries than keys, and with fewer."""
    attends = Attends(lambda query, key, value: qkv.attention(query, key, value, backend=backend, **VARYING[name]))
    queries, keys = (torch.export.Dim(name, min=2, max=4096) for name in ("queries", "keys"))
    shapes = {"inputs": ({2: queries}, {2: keys}, {2: keys})}
    program = torch.export.export(attends, tensors(gradient=False), dynamic_shapes=shapes)
    for sizes in ((20, 30), (30, 9), (3, 3)):
        other = tensors(B, *sizes, gradient=False)
        torch.testing.assert_close(program.module()(*other), attends(*other))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "size"), in_turn([name for name in CASES if name not in ("bilinear, bias", "gaussian, dense")], (Q, 160))
)
def test_what_jit_traces_gives_what_the_call_gives(name: str, size: int) -> None:
    """With other numbers of the same shapes, for short sequences and where our own kernels would run."""
    given = dict(CASES[name].given)
    if name == "sigmoid":
        given["mask"] = documents(torch.arange(size) // 3, torch.arange(size) // 4)
    if name == "lengths":
        given["mask"] = lengths(torch.tensor([4, size]))

    def attends(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return qkv.attention(query, key, value, **given)

    traced = torch.jit.trace(attends, tensors(B, size, size, gradient=False), check_trace=False)
    other = tensors(B, size, size, gradient=False)
    torch.testing.assert_close(traced(*other), attends(*other), atol=1e-4, rtol=1e-4)


BAD: dict[str, dict[str, Any]] = {
    "backend": {"backend": "fused"},
    "mask": {"mask": torch.zeros(Q, Q)},
    "bias": {"bias": torch.zeros(Q, Q + 1)},
    "score": {"score": Additive(torch.ones(D + 1))},
    "dropout": {"dropout": 1.5},
}


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("name", "fullgraph"),
    [
        *(pytest.param(name, True, marks=[] if name in ("mask", "score") else pytest.mark.slow) for name in BAD),
        *(pytest.param(name, False, marks=[] if name == "mask" else pytest.mark.slow) for name in BAD),
    ],
)
def test_an_error_reaches_who_compiles(name: str, fullgraph: bool) -> None:
    """As a part of PyTorch's own where nothing may run outside of the graph, at its beginning."""
    inputs = tensors(B, Q, Q, gradient=False)
    with pytest.raises(QkvError) as expected:
        qkv.attention(*inputs, **BAD[name])
    torch.compiler.reset()
    compiled = torch.compile(partial(qkv.attention, **BAD[name]), fullgraph=fullgraph, backend="eager")
    with pytest.raises(torch._dynamo.exc.Unsupported if fullgraph else QkvError) as raised:
        compiled(*inputs)
    error = raised.value.__cause__ if fullgraph else raised.value
    assert isinstance(error, QkvError)
    assert (type(error), error.argument) == (type(expected.value), expected.value.argument)
    assert str(raised.value).removeprefix(f"{type(error).__name__}: ").startswith(str(error))


@pytest.mark.parametrize("name", BAD)
def test_an_error_reaches_who_exports(name: str) -> None:
    with pytest.raises(QkvError):
        torch.export.export(Attention(BAD[name]), tensors(B, Q, Q, gradient=False))


class Attention(torch.nn.Module):
    """A module, which is what can be exported."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__()
        self.options = options

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return qkv.attention(query, key, value, **self.options)
