"""Keys that equal others are found, exactly, and a tie under `Hard` goes to the first key that a row sees."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from tests.contract.calls import Call
from tests.contract.mechanisms import DTYPES, NORMALIZER, SCORES, ScoreCase
from torch import Tensor

import qkv
from qkv.engine import ties
from qkv.engine.ties import first_equals, shared

HARD = NORMALIZER["hard"]
BACKENDS = ("auto", "reference", "lookup", "blocked")


def literal(key: Tensor) -> Tensor:
    """Compare all pairs."""
    equal = (key[..., :, None, :] == key[..., None, :, :]).all(-1) | torch.eye(key.shape[-2], dtype=torch.bool)
    return equal.to(torch.int8).argmax(-1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(20))
def test_the_first_of_equal_keys(seed: int, dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(seed)
    keys, width, levels = (int(torch.randint(1, most, (), generator=g)) for most in (80, 9, 5))
    key = torch.randint(-levels, levels, (3, 2, keys, width), generator=g).to(dtype)
    # Zeros of both signs, numbers of a few high bits, and not a number, which equals nothing.
    key = torch.where(torch.rand(key.shape, generator=g) < 0.2, -key, key)
    key[0, 0, 0] = torch.nan if seed % 2 else torch.inf
    found = first_equals(key)
    expected = literal(key)
    assert torch.equal(torch.arange(keys).expand_as(expected) if found is None else found, expected)


@pytest.mark.parametrize("shape", [(0, 3), (1, 0), (4, 0), (1, 1), (0, 4, 2)])
def test_sizes_at_the_edge(shape: tuple[int, ...]) -> None:
    found = first_equals(torch.zeros(shape))
    assert found is None or found.shape == shape[:-1]


def test_numbers_with_the_same_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ties, "FEW", 0)
    monkeypatch.setattr(ties, "_hashes", lambda key: torch.zeros(key.shape[:-1], dtype=torch.int64))
    key = torch.tensor([[1.0], [2.0], [1.0], [2.0]])
    assert first_equals(key).tolist() == [0, 1, 0, 3]


def test_columns_of_a_part_share_with_its_first() -> None:
    key = torch.tensor([[3.0], [1.0], [3.0], [1.0], [3.0]])
    first = first_equals(key)
    scores = torch.arange(5.0).expand(2, 5)
    assert shared(scores, first)[0].tolist() == [0, 1, 0, 1, 0]
    assert shared(scores[:, 2:], first[2:], start=2)[0].tolist() == [2, 3, 2]


def planted(score: ScoreCase, seed: int, dtype: torch.dtype, sizes: tuple[int, int]) -> tuple[Call, Tensor]:
    """Return a call whose keys repeat, and whose values spell their positions."""
    g = torch.Generator().manual_seed(seed)
    call = Call.draw(score, HARD, ((2, 2), *sizes), dtype)
    different = int(torch.randint(1, 6, (), generator=g))
    key = call.leaves["key"][..., torch.randint(0, min(different, sizes[1]), (sizes[1],), generator=g), :]
    place = torch.arange(sizes[1])
    value = torch.stack([place % 128, place // 128], -1).to(dtype).expand(2, 2, -1, -1)
    return call.with_leaves(key=key.contiguous(), value=value.contiguous()), key


def options(seed: int, queries: int, keys: int) -> tuple[dict[str, Any], Tensor, Tensor]:
    """Return a mask or a bias, the table of the mask, and the matrix of the bias."""
    g = torch.Generator().manual_seed(seed)
    every, none = torch.ones(queries, keys, dtype=torch.bool), torch.zeros(queries, keys)
    mask: Callable[[], Any] = [
        lambda: None,
        lambda: qkv.masks.causal(keys // 3),
        lambda: qkv.masks.window(3, keys // 2),
        lambda: torch.rand(queries, keys, generator=g) < 0.5,
        lambda: qkv.masks.lengths(torch.tensor([keys // 2 + 1, keys])),
        lambda: ~qkv.masks.window(2, 2),
        lambda: None,
        lambda: qkv.masks.span(keys // 4),
    ][seed % 8]
    built = mask()
    table = every if built is None else qkv.masks.lower.matrix(built, queries, keys, (2, 2))
    # Of few different numbers, so that biased scores tie too.
    bias = torch.randint(0, 2, (queries, keys), generator=g) / 2 if seed % 3 == 1 else none
    given = {"mask": built} | ({"bias": bias} if seed % 3 == 1 else {})
    if seed % 6 == 3:
        given["bias"] = qkv.biases.alibi(0.25)
        bias = -0.25 * (torch.arange(queries)[:, None] - torch.arange(keys)).abs()
    return given, table, bias


def first_of_its_kind(winner: Tensor, key: Tensor, table: Tensor, bias: Tensor) -> bool:
    """Whether no earlier key that the row sees, or a later one with a larger bias, equals the winner."""
    table, bias = (x.expand(2, 2, *x.shape[-2:]) for x in (table, bias))
    place = torch.arange(key.shape[-2])
    taken = key.gather(-2, winner[..., None].expand(*winner.shape, key.shape[-1]))
    equal = (taken[..., :, None, :] == key[..., None, :, :]).all(-1) & table
    own = bias.gather(-1, winner[..., None])
    better = equal & ((bias > own) | ((bias == own) & (place < winner[..., None])))
    return not bool((better & table.any(-1, keepdim=True)).any())


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 12))])
@pytest.mark.parametrize(
    ("score", "backend"),
    [
        pytest.param(score, backend, id=f"{score.name}-{backend}")
        for score, backend in product(SCORES, BACKENDS)
        if (score.name, backend) != ("learned", "lookup")  # which takes no user-defined scores
    ],
)
def test_a_tie_goes_to_the_first_of_equal_keys(score: ScoreCase, backend: str, seed: int) -> None:
    turn = seed + 7 * len(score.name) + BACKENDS.index(backend)
    dtype = DTYPES[turn % 4]
    for sizes in ((5, 3), (9, 37), (4, 300)):
        call, key = planted(score, turn, dtype, sizes)
        given, table, bias = options(turn, *sizes)
        if "bias" in given and isinstance(given["bias"], Tensor):
            given["bias"] = given["bias"].to(dtype)
        call = call.with_options(**given)
        output = call.output(backend).double()
        winner = (output[..., 0] + 128 * output[..., 1]).long()
        assert first_of_its_kind(winner, key, table, bias), (sizes, given)
        weights = call.weights(backend)[1].argmax(-1)
        assert first_of_its_kind(weights, key, table, bias), (sizes, given)
        if backend == "auto":
            arguments = call.arguments(call.leaves)
            amap = qkv.attention_map(call.leaves["query"], call.leaves["key"], **arguments)
            seen = table.any(-1).expand(2, 2, -1)
            assert torch.equal(amap.topk(1)[1][..., 0][seen], winner[seen])


TRACED = [
    pytest.param(name, seed, marks=[] if (name, seed) in (("additive", 1), ("learned", 3)) else [pytest.mark.slow])
    for name in ("scaled_dot", "additive", "concat", "learned")
    for seed in range(4)
]
"""In the fast suite a score of a core, and a user-defined one: a compilation takes seconds."""


@pytest.mark.compiler
@pytest.mark.parametrize(("name", "seed"), TRACED)
def test_traced_calls_too(name: str, seed: int) -> None:
    torch._dynamo.reset()
    goes_to_the_first(lambda attend: torch.compile(attend, fullgraph=True, backend="aot_eager"), name, seed)


@pytest.mark.parametrize("name", ["scaled_dot", "additive", "concat", "learned"])
def test_mapped_calls_too(name: str) -> None:
    goes_to_the_first(torch.func.vmap, name, seed=0)


def goes_to_the_first(transform: Callable[..., Callable[..., Tensor]], name: str, seed: int) -> None:
    call, key = planted(next(score for score in SCORES if score.name == name), seed, torch.float32, (9, 37))
    given, table, bias = options(seed, 9, 37)
    arguments = call.with_options(**given).arguments(call.leaves)
    leaves = [call.leaves[part] for part in ("query", "key", "value")]

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return qkv.attention(query, key, value, **arguments)

    output = transform(attend)(*leaves)
    winner = (output[..., 0] + 128 * output[..., 1]).round().long()
    assert first_of_its_kind(winner, key, table, bias)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_first_gets_the_gradient(backend: str) -> None:
    call, _ = planted(next(each for each in SCORES if each.name == "additive"), 3, torch.float32, (9, 37))
    output, gradients = call.gradients(backend)
    winner = (output[..., 0] + 128 * output[..., 1]).long()
    read = torch.zeros(2, 2, 37).scatter(-1, winner, 1.0) > 0
    assert not gradients["value"][~read].any()
    assert not gradients["key"].any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("repeated", [False, True])
def test_few_keys_are_compared_as_many_are(dtype: torch.dtype, repeated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A set of bytes and a sorted list of hashes find the same keys, 0 equal to −0."""
    key = torch.randn(2, 3, 7, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    if repeated:
        key[..., 5, :] = key[..., 2, :]
        key[..., 5, 1], key[..., 2, 1] = 0.0, -0.0
    few = first_equals(key)
    monkeypatch.setattr(ties, "FEW", 0)
    many = first_equals(key)
    assert (few is None) == (many is None) == (not repeated)
    if few is not None:
        assert torch.equal(few, many)
