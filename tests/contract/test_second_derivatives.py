"""Every algorithm has derivatives of any order, by tiles where its kernel has none, in linear memory."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from typing import Any, ClassVar

import pytest
import torch
from tests.contract.calls import MECHANISMS, Call, a_third, by_part, drawn, near
from tests.contract.mechanisms import NORMALIZER, ON_CPU, SCORE
from tests.contract.served import by_served
from tests.here import here
from tests.pairs import every_pair
from torch import Tensor
from torch.autograd import gradgradcheck
from torch.autograd.functional import hessian, hvp, vhp

from qkv.biases import Bias, alibi, relative
from qkv.errors import UnsupportedError
from qkv.functional import attention, attention_with_state, attention_with_weights
from qkv.masks.patterns import causal, lengths, window
from qkv.normalizers.dense import Identity, Mean, Sigmoid, Softmax
from qkv.normalizers.sparse import Entmax
from qkv.planner.registry import ALGORITHMS
from qkv.scores.kernels import Boxcar, Epanechnikov, Gaussian, SquaredDistance
from qkv.scores.products import ScaledDot
from qkv.scores.sums import Additive
from qkv.values.parameters import Parameter

MASKS = {
    "none": None,
    "causal": causal(),
    "lengths": lengths(torch.tensor([0, 6])),
    "dense": torch.rand(2, 1, 5, 7, generator=torch.Generator().manual_seed(0)) < 0.6,
    "not": ~window(1, 1),
}
BACKENDS = (*(name for name in ON_CPU if name != "reference"), "auto")


def curvatures(output: Tensor, leaves: dict[str, Tensor]) -> list[Tensor]:
    """First derivatives of every leaf, and the derivatives of their combination."""
    values = list(leaves.values())
    first = torch.autograd.grad(output.double().sin().sum(), values, create_graph=True, materialize_grads=True)
    weights = (torch.linspace(-1, 1, g.numel(), dtype=torch.float64).view(g.shape) for g in first)
    total = sum((g * w).sum() for g, w in zip(first, weights, strict=True))
    assert isinstance(total, Tensor)
    if not total.requires_grad:
        return [*first, *map(torch.zeros_like, values)]
    return [*first, *torch.autograd.grad(total, values, materialize_grads=True)]


def of_call(call: Call, backend: str, function=attention) -> list[Tensor]:
    leaves = {name: x.detach().clone().requires_grad_() for name, x in call.leaves.items()}
    output = call._call(function, leaves, backend)
    return curvatures(output if isinstance(output, Tensor) else output[0], leaves)


@lru_cache(maxsize=len(MECHANISMS))
def of_mechanism(turn: int, mask: str) -> tuple[Call, list[Tensor]]:
    """A call, and what the reference computes of it, for all backends."""
    call = Call.draw(*MECHANISMS[turn], mask=MASKS[mask])
    return call, of_call(call, "reference")


@by_part
@by_served(lambda mask: drawn(mask=MASKS[mask]), BACKENDS, every=2, mask=MASKS)
def test_second_derivatives_are_those_of_the_equation(backend: str, mask: str, whole: bool) -> None:
    turns = range(len(MECHANISMS))
    for turn in turns if whole else a_third(turns, list(MASKS).index(mask)):
        call, expected = of_mechanism(turn, mask)
        if backend != "auto" and not call.serves(backend):
            continue
        assert all(near(x, y, 4000) for x, y in zip(of_call(call, backend), expected, strict=True)), call


def common(dtype: torch.dtype) -> Iterator[Call]:
    for name in ("scaled_dot", "cosine", "gaussian", "additive", "concat"):
        for rule in ("softmax", "sum", "mean", "entmax") if name == "gaussian" else ("softmax", "mean", "entmax"):
            yield Call.draw(SCORE[name], NORMALIZER[rule], dtype=dtype, mask=MASKS["dense"])


@by_served(
    lambda dtype: (call.request() for call in common(dtype)),
    BACKENDS,
    every=2,
    dtype=[torch.float32, torch.bfloat16, torch.float16],
)
def test_second_derivatives_of_other_types_are_near(backend: str, dtype: torch.dtype) -> None:
    """Computed in float32 at least: the inputs, first derivatives and results alone are rounded."""
    for call in common(dtype):
        if backend != "auto" and not call.serves(backend):
            continue
        exact = call.with_leaves(**{leaf: x.double() for leaf, x in call.leaves.items()})
        for x, y in zip(of_call(call, backend), of_call(exact, "reference"), strict=True):
            assert x.dtype == dtype
            assert (x.double() - y).abs().max() <= 64 * torch.finfo(dtype).eps * (1 + y.abs().max()), call


@dataclass(frozen=True, eq=False)
class Table(Bias):
    """A learned number for each pair of positions modulo 5 and 4, which is no function of their difference."""

    table: Tensor
    parameters: ClassVar[tuple[Parameter, ...]] = (Parameter("table", 2),)

    def tile(self, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        return self.table[..., rows_Q1 % 5, columns_K % 4]


class Doubled(Bias):
    """A bias that keeps what it has computed from its parameter, which no derivative by tiles can follow."""

    parameters: ClassVar[tuple[Parameter, ...]] = (Parameter("table", 2),)

    def __init__(self, table: Tensor) -> None:
        self.table, self.twice = table, table.tanh()

    def tile(self, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        return self.twice[..., rows_Q1 % 5, columns_K % 4]


class Wave(Bias):
    """A bias that closes over a tensor that it does not name."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight

    def tile(self, rows_Q1: Tensor, columns_K: Tensor) -> Tensor:
        return self.weight * (0.3 * rows_Q1).sin() * (0.2 * columns_K).cos()


BIASES: dict[str, tuple[tuple[int, ...], Any]] = {
    "none": ((0,), lambda x: None),
    "tensor": ((2, 5, 7), lambda x: x),
    "alibi": ((2,), alibi),
    "relative": ((2, 5), relative),
    "table": ((2, 5, 4), Table),
    "doubled": ((2, 5, 4), Doubled),
    "wave": ((2, 1, 1), Wave),
}


def twice(loss: Any, leaves: list[Tensor]) -> list[Tensor]:
    """First derivatives, and those of their combination, by `torch.func`."""
    every = tuple(range(len(leaves)))

    def combined(*tensors: Tensor) -> Tensor:
        first = torch.func.grad(loss, every)(*tensors)
        return sum((g * torch.linspace(-1, 1, g.numel(), dtype=F64).view(g.shape)).sum() for g in first)  # type: ignore[return-value]

    return [*torch.func.grad(loss, every)(*leaves), *torch.func.grad(combined, every)(*leaves)]


def by_autograd(f: Any, leaves: list[Tensor]) -> list[Tensor]:
    return curvatures(f(*leaves), dict(enumerate(leaves)))  # type: ignore[arg-type]


def by_transformations(f: Any, leaves: list[Tensor]) -> list[Tensor]:
    return twice(lambda *tensors: f(*tensors).sin().sum(), [x.detach() for x in leaves])


def by_mapped_transformations(f: Any, leaves: list[Tensor]) -> list[Tensor]:
    pairs = [torch.stack([x.detach() + 0.01, x.detach()]) for x in leaves]
    found = torch.vmap(lambda *tensors: tuple(twice(lambda *own: f(*own).sin().sum(), list(tensors))))(*pairs)
    return [x[1] for x in found]


def by_exported_program(f: Any, leaves: list[Tensor]) -> list[Tensor]:
    class Module(torch.nn.Module):
        def forward(self, *tensors: Tensor) -> Tensor:
            return f(*tensors)  # type: ignore[no-any-return]

    return by_autograd(torch.export.export(Module(), tuple(leaves)).module(), leaves)


WAYS = {"autograd": by_autograd, "func": by_transformations, "mapped": by_mapped_transformations}
EVERY_WAY = {**WAYS, "exported": by_exported_program}
OF_EACH_CORE = (
    *(("scaled_dot", name) for name in ("softmax", "softmax_sink", "sigmoid", "entmax_learned", "mean", "hard")),
    *(("additive", name) for name in ("softmax", "sigmoid_bias", "sparsemax")),
    *(("gaussian", "softmax"), ("epanechnikov", "identity"), ("concat", "mean"), ("learned", "softmax")),
)


def unless_refused(compute: Any) -> list[Tensor] | None:
    try:
        return compute()  # type: ignore[no-any-return]
    except UnsupportedError:
        return None
    except RuntimeError as error:
        if "UnsupportedError" not in str(error) and "flash_attention_for_cpu_backward is not" not in str(error):
            raise
        return None


PLAIN = [("autograd", mask, 1) for mask in MASKS] + [("func", mask, 1) for mask in ("none", "lengths", "not")]
MAPPED = [("mapped", "lengths", 6), ("mapped", "not", 7)]
EXPORTED = [("exported", "lengths", 6), ("exported", "dense", 7)]
"""The way, the mask, and of how many mechanisms one is drawn."""
QUICK = [("exported", "lengths", 6, "tensor"), *(("exported", "dense", 7, bias) for bias in ("none", "table", "wave"))]
"""Of what is exported, what the fast suite takes: a program takes a second, and one of some biases two."""


def _exported() -> list[Any]:
    cases = [(*how, bias) for how, bias in product(EXPORTED, BIASES)]
    return [pytest.param(*case, marks=[] if case in QUICK else pytest.mark.slow) for case in cases]


@pytest.mark.compiler
@by_part
@pytest.mark.parametrize(
    ("way", "mask", "step", "bias"),
    [*every_pair((*how, bias) for how, bias in product([*PLAIN, *MAPPED], BIASES)), *_exported()],
)
def test_every_bias_and_way_agrees_or_refuses(way: str, mask: str, step: int, bias: str, whole: bool) -> None:
    shape, build = BIASES[bias]
    agreed = refused = 0
    for score, normalizer in OF_EACH_CORE[:: step if whole else max(3, step)]:
        call = Call.draw(SCORE[score], NORMALIZER[normalizer], mask=MASKS[mask])
        generator = torch.Generator().manual_seed(1)
        call = call.with_leaves(bias=torch.randn(shape, generator=generator, dtype=F64) / 2)
        names = list(call.leaves)
        leaves = [x.requires_grad_() for x in call.leaves.values()]

        def compute(*tensors: Tensor, backend: str, names: list[str] = names, call: Call = call) -> Tensor:
            by_name = dict(zip(names, tensors, strict=True))
            added = build(by_name.pop("bias"))
            return call.with_options(bias=added)._call(attention, by_name, backend)  # type: ignore[no-any-return]

        reference = by_autograd(partial(compute, backend="reference"), leaves)
        for backend in ("auto", "blocked", *(("fused",) if here("fused") else ())):
            ours = unless_refused(partial(EVERY_WAY[way], partial(compute, backend=backend), leaves))
            if ours is None:
                # PyTorch's own kernel, which an exported program names, is refused by PyTorch.
                assert backend != "auto" or way == "exported" or bias == "doubled", call
                refused += 1
                continue
            agreed += 1
            assert all(near(x, y, 40_000) for x, y in zip(ours, reference, strict=True)), (call, backend)
    assert agreed > refused or bias in ("table", "doubled", "wave"), (agreed, refused)


def points(leading: tuple[int, ...], queries: int, keys: int, width: int, dtype: torch.dtype) -> list[Tensor]:
    g = torch.Generator().manual_seed(queries)
    shapes = ((*leading, queries, width), (*leading, keys, width), (*leading, keys, 3))
    return [(torch.randn(shape, generator=g) / 2).to(dtype).requires_grad_() for shape in shapes]


F32, F64 = torch.float32, torch.float64
VECTOR = torch.linspace(-1, 1, 6, dtype=F64)
LARGER = {
    "sdpa.flash": ((2, 3), 40, 50, 6, F64, {"mask": causal()}),
    "sdpa.flash padded": ((2, 3), 40, 50, 6, F64, {"mask": lengths(torch.tensor([0, 33]))}),
    "sdpa.flash biased": ((2, 3), 40, 50, 6, F64, {"bias": torch.randn(40, 50, dtype=F64).relu().log()}),
    "sdpa.flash alibi": ((2, 3), 40, 50, 6, F64, {"bias": alibi(0.3), "mask": causal()}),
    "sdpa.softmax_sink": ((2, 3), 40, 50, 6, F64, {"normalizer": Softmax(0.5), "mask": causal()}),
    "sdpa.short": ((8, 4), 20, 30, 6, F32, {"mask": causal()}),
    "sdpa.short padded": ((8, 4), 20, 30, 6, F32, {"mask": lengths(torch.tensor([0, 5, 30, 7, 1, 2, 3, 4]))}),
    "sdpa.short sink": ((8, 4), 20, 30, 6, F32, {"normalizer": Softmax(torch.linspace(-1, 1, 4))}),
    "rowwise.short": ((2, 3), 20, 30, 4, F32, {"score": Gaussian(1.5), "mask": causal()}),
    "rowwise.short root": ((2, 3), 20, 30, 4, F32, {"score": Epanechnikov(9.0, 1), "normalizer": Softmax(0.3)}),
    "rowwise.short sparse": ((2, 3), 20, 30, 6, F32, {"normalizer": Entmax(1.3), "mask": torch.eye(20, 30) < 1}),
    "rowwise.short dropped": ((2, 3), 20, 30, 6, F32, {"normalizer": Sigmoid(-1.0), "dropout": 0.4}),
    "additive.factored": ((2, 3), 300, 40, 6, F64, {"score": Additive(VECTOR), "mask": causal()}),
    "additive.factored sigmoid": ((2, 3), 300, 40, 6, F64, {"score": Additive(VECTOR), "normalizer": Sigmoid()}),
    "additive.factored sink": ((2, 3), 300, 40, 6, F64, {"score": Additive(VECTOR), "normalizer": Softmax(0.1)}),
    "additive.factored bias": (
        (2, 3),
        300,
        40,
        6,
        F64,
        {"score": Additive(VECTOR), "bias": torch.randn(3, 300, 40, dtype=F64), "dropout": 0.3},
    ),
    "additive.factored alibi": ((2, 3), 300, 40, 6, F64, {"score": Additive(VECTOR), "bias": alibi(0.3)}),
    "additive.direct": ((2, 3), 2, 40, 6, F64, {"score": Additive(VECTOR), "mask": lengths(torch.tensor([30, 7]))}),
    "rowwise.rows": ((2, 3), 60, 70, 6, F64, {"normalizer": Entmax(1.5), "mask": causal()}),
    "rowwise.rows dropped": ((2, 3), 60, 70, 6, F64, {"dropout": 0.4, "bias": relative(torch.randn(3, 9, dtype=F64))}),
    "rowwise.distance_rows": ((2, 3), 60, 70, 4, F32, {"score": Gaussian(1.5), "mask": causal()}),
    "rowwise.distance_rows root": ((2, 3), 60, 70, 4, F32, {"score": Epanechnikov(9.0, 1), "mask": causal()}),
    "rowwise.distance_tiles": ((2, 3), 60, 70, 4, F32, {"score": Boxcar(2.0)}),
    "rowwise.augmented_dot": ((2, 3), 60, 70, 4, F32, {"score": SquaredDistance(1.5), "normalizer": Softmax()}),
    "tiled.blocked": ((2, 3), 300, 600, 6, F64, {"normalizer": Mean(), "dropout": 0.2}),
    "tiled.user_scores": ((2, 3), 30, 40, 6, F64, {"score": lambda q, k: (q @ k.mT).sin()}),
    "sorted.two_pointer": ((2,), 60, 70, 1, F32, {"score": Epanechnikov(1.0)}),
    "sorted.prefix_sums": ((2,), 60, 70, 1, F32, {"score": Epanechnikov(1.0), "normalizer": Identity()}),
    "matrix.linear": ((2,), 60, 70, 6, F64, {"normalizer": Identity()}),
    "tiled.lookup": ((2,), 60, 70, 6, F64, {"normalizer": "hard"}),
}
WITHOUT = {
    *("matrix.reference", "sdpa.flex", "sdpa.sink_key", "sdpa.few_queries", "additive.triton"),
    *("tiled.operators", "tiled.traced_user_scores"),
}
"""The judge, algorithms of traced calls and of a GPU, and one without a backward pass."""


@pytest.mark.parametrize("name", [name for name in LARGER if here(name.split()[0])])
def test_each_algorithm_has_second_derivatives(name: str) -> None:
    leading, queries, keys, width, dtype, options = LARGER[name]
    if "normalizer" in options and options["normalizer"] == "hard":
        options = options | {"normalizer": NORMALIZER["hard"].build({})}
    found = []
    for backend, kind in ((name.split(maxsplit=1)[0], dtype), ("reference", F64)):
        leaves = dict(
            enumerate(x.detach().to(kind).requires_grad_() for x in points(leading, queries, keys, width, dtype))
        )
        options = options | {"generator": torch.Generator().manual_seed(0)}
        found.append(curvatures(attention(*leaves.values(), **options, backend=backend), leaves))
    scale = 4000 * torch.finfo(dtype).eps
    for x, y in zip(*found, strict=True):
        assert (x.double() - y).abs().max() <= scale * (1 + y.abs().max())


def test_every_algorithm_is_drawn() -> None:
    assert {name.split()[0] for name in LARGER} | WITHOUT == {algorithm.name for algorithm in ALGORITHMS}


@pytest.mark.parametrize("name", ["scaled_dot", "cosine", "gaussian", "additive"])
@pytest.mark.parametrize("backend", ["auto", "blocked"])
def test_second_derivatives_match_finite_differences(name: str, backend: str) -> None:
    normalizer = NORMALIZER["sum" if name == "gaussian" else "softmax"]
    call = Call.draw(SCORE[name], normalizer, ((2,), 2, 3), mask=lengths(torch.tensor([2, 3])), value_width=1)
    leaves = {leaf: x.requires_grad_() for leaf, x in call.leaves.items()}

    def compute(*given: Tensor) -> Tensor:
        return call.with_leaves(**dict(zip(leaves, given, strict=True))).output(backend)

    assert gradgradcheck(compute, list(leaves.values()), atol=1e-5, fast_mode=True)


@pytest.mark.parametrize("backend", here("auto", "sdpa", "blocked", "rowwise"))
def test_any_order_and_every_way_to_ask_for_it(backend: str) -> None:
    """Hessians and products with them by PyTorch's functions, which differentiate up to three times."""
    query, key, value = torch.randn(3, 2, 5, 4, dtype=F64).unbind()

    def loss(backend: str):
        return lambda q, k: attention(q, k, value, mask=causal(), backend=backend).sin().sum()

    for ask in (
        lambda f: hessian(f, (query, key)),
        lambda f: hvp(f, (query, key), (key, query))[1],
        lambda f: vhp(f, (query, key), (key, query))[1],
    ):
        ours, theirs = (torch.utils._pytree.tree_leaves(ask(loss(name))) for name in (backend, "reference"))
        assert all(near(x, y, 4000) for x, y in zip(ours, theirs, strict=True))
    orders = []
    for name in (backend, "reference"):
        leaf = query.clone().requires_grad_()
        x = attention(leaf, key, value, backend=name)
        for _ in range(4):
            (x,) = torch.autograd.grad(x.square().sum(), leaf, create_graph=True)
        orders.append(x)
    assert near(*orders, 40_000)


@pytest.mark.parametrize("backend", ["auto", "blocked", "sdpa"])
def test_a_gradient_penalty_trains_and_accumulates(backend: str) -> None:
    """`backward` twice over one graph: the loss, and the square of its gradient."""
    found = []
    for name in (backend, "reference"):
        query, key, value = (
            x.requires_grad_() for x in torch.linspace(-1, 1, 300, dtype=F64).view(3, 2, 5, 10).unbind()
        )
        output, weights = attention_with_weights(query, key, value, mask=causal(), backend=name)
        loss = output.square().sum() + weights.square().sum()
        (g,) = torch.autograd.grad(loss, query, create_graph=True)
        (loss + g.norm()).backward()
        found.append([query.grad, key.grad, value.grad])
    assert all(near(x, y, 4000) for x, y in zip(*found, strict=True))


RULES = ["softmax", "softmax_sink", "entmax_learned"]


def with_state(score: str, rule: str) -> Call:
    return Call.draw(SCORE[score], NORMALIZER[rule], mask=MASKS["dense"])


@by_served(
    lambda mechanism: with_state(*mechanism).request(state=True),
    here("blocked", "rowwise", "fused", "auto"),
    mechanism=[*product(["scaled_dot", "additive"], RULES), ("gaussian", "sum")],
)
def test_states_have_second_derivatives(backend: str, mechanism: tuple[str, str]) -> None:
    call = with_state(*mechanism)

    def state(*tensors: Tensor, **options: object) -> Tensor:
        output, found = attention_with_state(*tensors, **options)
        return output + torch.where(found.value.isinf(), 0.0, found.value)[..., None].to(output.dtype)

    ours, theirs = (of_call(call, which, state) for which in (backend, "reference"))
    assert all(near(x, y, 40_000) for x, y in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("backend", here("auto", "blocked", "sdpa", "rowwise", "fused"))
def test_hidden_keys_may_hold_any_number(backend: str) -> None:
    score = Additive(torch.ones(4)) if backend == "fused" else ScaledDot()
    answers = []
    for poison in (0.0, torch.nan):
        query, key, value = torch.randn(3, 2, 5, 4, generator=torch.Generator().manual_seed(0)).unbind()
        key[0, 3:], value[0, 3:], query[1] = poison, poison, poison
        leaves = {name: x.requires_grad_() for name, x in (("query", query), ("key", key), ("value", value))}
        mask = lengths(torch.tensor([3, 0]))
        answers.append(curvatures(attention(*leaves.values(), score=score, mask=mask, backend=backend), leaves))
    assert all(torch.equal(x, y) for x, y in zip(*answers, strict=True))


@pytest.mark.parametrize("backend", here("blocked", "sdpa", "rowwise"))
def test_a_change_in_place_is_not_overlooked(backend: str) -> None:
    query, key, value = (x.requires_grad_() for x in torch.randn(3, 2, 5, 4).unbind())
    inputs = [x * 1 for x in (query, key, value)]
    (first,) = torch.autograd.grad(attention(*inputs, backend=backend).square().sum(), query, create_graph=True)
    with torch.no_grad():
        inputs[1].mul_(2)
    with pytest.raises(RuntimeError, match="inplace"):
        torch.autograd.grad(first.square().sum(), query)
