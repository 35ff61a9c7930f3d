"""Merging row states is associative and commutative, with the empty key set as identity."""

from collections.abc import Callable
from itertools import pairwise
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contract.calls import Request, near, request
from tests.contract.served import by_served
from torch import Tensor
from torch.autograd import gradcheck

from qkv.errors import ShapeError, UnsupportedError
from qkv.functional import attention, attention_with_state
from qkv.masks.patterns import causal, lengths
from qkv.normalizers.base import Normalizer
from qkv.normalizers.dense import Hard, Identity, Mean, Sigmoid, Softmax, Sum
from qkv.normalizers.kinds import KINDS, MERGEABLE
from qkv.normalizers.row_state import RowState, merge
from qkv.normalizers.sparse import Sparsemax
from qkv.scores.base import Score
from qkv.scores.free import Uniform
from qkv.scores.kernels import Boxcar, Epanechnikov, Gaussian, SquaredDistance
from qkv.scores.products import Dot

Part = tuple[Tensor, RowState]
MECHANISMS: dict[str, tuple[Score, Normalizer]] = {
    "softmax": (Dot(), Softmax()),
    "sum": (Gaussian(2.0), Sum()),
    "box": (Boxcar(1.5), Sum()),
    "mean": (Dot(), Mean()),
    "identity": (Dot(), Identity()),
    "hard": (Dot(), Hard()),
}
by_mechanism = pytest.mark.parametrize("name", MECHANISMS)
cuts = st.lists(st.integers(0, 12), min_size=1, max_size=4).map(sorted)
seeds = st.integers(0, 1000)


def draw(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    shapes = ((2, 3, 4), (2, 12, 4), (2, 12, 5))
    return tuple(torch.randn(shape, generator=g, dtype=torch.float64) for shape in shapes)  # type: ignore[return-value]


def part(name: str, tensors: tuple[Tensor, Tensor, Tensor], keys: slice, backend: str = "auto") -> Part:
    query, key, value = tensors
    score, normalizer = MECHANISMS[name]
    options = {"score": score, "normalizer": normalizer, "backend": backend}
    return attention_with_state(query, key[:, keys], value[:, keys], **options)


def parts_of(name: str, seed: int, where: list[int]) -> list[Part]:
    edges = [0, *where, 12]
    return [part(name, draw(seed), slice(a, b)) for a, b in pairwise(edges)]


def same(one: Part, other: Part) -> bool:
    return near(one[0], other[0]) and near(one[1].value, other[1].value)


@by_mechanism
@settings(max_examples=40)
@given(seed=seeds, where=cuts)
def test_merged_shards_are_the_whole(name: str, seed: int, where: list[int]) -> None:
    """However the keys are split, empty shards included."""
    assert same(merge(parts_of(name, seed, where)), part(name, draw(seed), slice(None)))


@by_mechanism
@settings(max_examples=25)
@given(seed=seeds, one=st.integers(0, 12), other=st.integers(0, 12))
def test_merge_is_associative(name: str, seed: int, one: int, other: int) -> None:
    a, b, c = parts_of(name, seed, sorted([one, other]))
    assert same(merge([merge([a, b]), c]), merge([a, merge([b, c])]))


@by_mechanism
@settings(max_examples=25)
@given(seed=seeds, where=st.integers(0, 12))
def test_merge_is_commutative(name: str, seed: int, where: int) -> None:
    a, b = parts_of(name, seed, [where])
    assert same(merge([a, b], [0, where]), merge([b, a], [where, 0]))
    if name != "hard":
        assert same(merge([a, b]), merge([b, a]))


@settings(max_examples=100)
@given(where=cuts, seed=st.integers(0, 10_000), masked=st.booleans())
def test_ties_of_hard_go_to_the_first_key_in_any_order_and_grouping(where: list[int], seed: int, masked: bool) -> None:
    """Scores from {−inf, 0, 1, 2}, so that ties are everywhere; each key's value is its position."""
    r, g = Random(seed), torch.Generator().manual_seed(seed)
    query, key = torch.ones(2, 3, 1), torch.randint(0, 3, (2, 12, 1), generator=g).float()
    key = torch.where(torch.rand(key.shape, generator=g) < 0.2, -torch.inf, key)
    value = torch.arange(12.0)[:, None].expand(2, 12, 1) + 1
    seen = torch.rand(2, 3, 12, generator=g) < (0.5 if masked else 2)
    seen[0, 0] = False

    def over(keys: slice) -> Part:
        options = {"score": Dot(), "normalizer": Hard(), "mask": seen[..., keys]}
        return attention_with_state(query, key[:, keys], value[:, keys], **options)

    output, state = over(slice(None))
    edges = [0, *where, 12]
    parts = [(over(slice(a, b)), a) for a, b in pairwise(edges)]
    in_order = merge([part for part, _ in parts])
    r.shuffle(parts)
    while len(parts) > 1:
        chosen = r.randint(2, len(parts))
        some, parts = parts[:chosen], parts[chosen:]
        parts.append((merge([part for part, _ in some], [start for _, start in some]), 0))
        r.shuffle(parts)
    for found in (in_order, parts[0][0]):
        assert torch.equal(found[0], output)
        assert torch.equal(found[1].value, state.value)
        assert found[1].winner is not None
        assert torch.equal(found[1].winner, state.winner)
        assert found[1].keys == 12
    assert (state.winner[0, 0] == -1).all()  # type: ignore[index]


def test_ties_of_hard_go_to_the_first_part() -> None:
    query, key = torch.ones(1, 1), torch.ones(4, 1)
    value = torch.arange(4.0)[:, None]
    halves = [
        attention_with_state(query, key[s], value[s], score=Dot(), normalizer=Hard()) for s in (slice(2), slice(2, 4))
    ]
    assert merge(halves)[0].item() == 0.0
    assert merge(halves[::-1], [2, 0])[0].item() == 0.0
    with pytest.raises(ShapeError, match="starts: expected 2 numbers"):
        merge(halves, [0])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("score", [Gaussian(2.0), Boxcar(1.5), Epanechnikov(3.0), Uniform()], ids=repr)
def test_sums_with_a_bias_merge_exactly_or_not_at_all(score: Score, dtype: torch.dtype) -> None:
    """Where a bias makes scores negative, the total of a part can cancel, and its output is 0 or too large."""
    g = torch.Generator().manual_seed(0)
    smallest, merged = (1.0 if isinstance(score, Uniform) else 0.0), 0
    for trial in range(60):
        query, key, value = (x.to(dtype) for x in draw(trial))
        low, high = ((-smallest, 2.0), (0.0, 1.0), (-1.0, 1.0), (-2.0, -1.0))[trial % 4]
        bias = torch.empty(((), (3, 12), (2, 1, 12))[trial % 3]).uniform_(low, high, generator=g)
        bias = ((bias * 2).round() / 2 if trial % 5 else bias).to(dtype)
        of = bias.expand(*bias.shape[:-1], 12) if bias.ndim else bias.expand(12)
        cut = int(torch.randint(13, (), generator=g))
        halves = [
            attention_with_state(query, key[:, keys], value[:, keys], score=score, normalizer=Sum(), bias=of[..., keys])
            for keys in (slice(cut), slice(cut, 12))
        ]
        if float(bias.min()) < -smallest:
            with pytest.raises(UnsupportedError, match="sums of scores that are never negative"):
                merge(halves)
            continue
        merged += 1
        s = score(query.double(), key.double()) + bias.double()
        total = s.sum(-1, keepdim=True)
        exact = torch.where(total == 0, 0, s @ value.double() / total.masked_fill(total == 0, 1))
        assert near(merge(halves)[0], exact.to(dtype), 4 if dtype == torch.float16 else 100)
    assert merged > 20


def test_states_without_positions_merge_in_the_order_of_the_parts() -> None:
    """Such as those of dropout, and of traces of earlier versions."""
    one, two = (torch.full((1, 1), x) for x in (1.0, 2.0))
    tie = RowState("hard", torch.zeros(1))
    assert merge([(one, tie), (two, tie)])[0] == 1
    assert merge([(two, tie), (one, tie)])[0] == 2


@by_mechanism
@settings(max_examples=25)
@given(seed=seeds)
def test_no_keys_are_the_identity(name: str, seed: int) -> None:
    whole, nothing = part(name, draw(seed), slice(None)), part(name, draw(seed), slice(0, 0))
    assert same(merge([whole, nothing]), whole)
    assert same(merge([nothing, whole]), whole)
    assert same(merge([nothing, nothing]), nothing)
    assert (nothing[0] == 0).all()


@by_mechanism
def test_one_part_is_itself(name: str) -> None:
    whole = part(name, draw(0), slice(None))
    assert same(merge([whole]), whole)


def whole_call(name: str) -> Request:
    score, normalizer = MECHANISMS[name]
    return request(*draw(1), score=score, normalizer=normalizer)


@by_served(whole_call, name=MECHANISMS)
def test_parts_of_any_backend_merge(name: str, backend: str) -> None:
    tensors = draw(1)
    halves = [part(name, tensors, slice(0, 5), backend), part(name, tensors, slice(5, 12), "reference")]
    assert same(merge(halves), part(name, tensors, slice(None), "reference"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_states_are_float64(dtype: torch.dtype) -> None:
    query, key, value = (x.to(dtype) for x in draw(2))
    halves = [attention_with_state(query, key[:, s], value[:, s]) for s in (slice(0, 5), slice(5, 12))]
    output, state = merge(halves)
    assert output.dtype == dtype
    assert state.value.dtype == torch.float64
    assert near(output, attention(query, key, value), 4)


def test_a_sink_belongs_in_one_part() -> None:
    query, key, value = draw(3)
    sink = Softmax(sink=0.5)
    halves = [
        attention_with_state(query, key[:, :5], value[:, :5], normalizer=sink),
        attention_with_state(query, key[:, 5:], value[:, 5:]),
    ]
    assert same(merge(halves), attention_with_state(query, key, value, normalizer=sink))


def test_rows_that_see_nothing_merge() -> None:
    """A row that is empty in every part, in one part, in none."""
    query, key, value = draw(4)
    masks = (lengths(torch.tensor([3, 0])), lengths(torch.tensor([0, 0])))
    pieces = [
        attention_with_state(query, key[:, s], value[:, s], mask=m)
        for s, m in zip((slice(0, 5), slice(5, 12)), masks, strict=True)
    ]
    output, state = merge(pieces)
    assert near(output[0], attention(query[0], key[0, :3], value[0, :3]))
    assert (output[1] == 0).all()
    assert (state.lse[1] == -torch.inf).all()


def test_gradients_pass_through_merge() -> None:
    query, key, value = (x[:1].requires_grad_() for x in draw(5))

    def shards(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        pieces = ((slice(0, 5), None), (slice(5, 12), causal(-1)))
        found = [attention_with_state(query, key[:, s], value[:, s], mask=m, backend="reference") for s, m in pieces]
        return merge(found)[0]

    assert gradcheck(shards, [query, key, value], fast_mode=True)
    gradients = torch.autograd.grad(shards(query, key, value).sum(), [query, key, value])
    assert all(x.isfinite().all() for x in gradients)


def test_gradients_stay_finite_where_nothing_is_seen() -> None:
    query, key, value = (x.requires_grad_() for x in draw(6))
    pieces = [
        attention_with_state(query, key[:, s], value[:, s], mask=lengths(0), backend="reference")
        for s in (slice(0, 5), slice(5, 12))
    ]
    output, state = merge(pieces)
    total = output.sum() + torch.where(state.lse.isinf(), 0.0, state.lse).sum()
    gradients = torch.autograd.grad(total, [query, key, value])
    assert all((x == 0).all() for x in gradients)


def test_large_and_small_parts_merge_without_overflow() -> None:
    query, value = torch.ones(1, 1), torch.tensor([[1.0], [2.0]])
    pieces = [
        attention_with_state(query, torch.tensor([[size]]), value[i : i + 1], score=Dot())
        for i, size in enumerate((1e30, -1e30))
    ]
    output, state = merge(pieces)
    assert output.item() == 1.0
    assert state.lse.item() == torch.tensor(1e30).item()


STATES: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda s: s.logsumexp(-1),
    "mean": lambda s: torch.full(s.shape[:-1], 12.0, dtype=s.dtype),
    "identity": lambda s: torch.zeros(s.shape[:-1], dtype=s.dtype),
    "hard": lambda s: s.amax(-1),
}


@pytest.mark.parametrize("name", STATES)
def test_states_are_what_they_say(name: str) -> None:
    tensors = draw(7)
    state = part(name, tensors, slice(None))[1]
    assert state.kind == name
    assert near(state.value, STATES[name](Dot()(*tensors[:2])))


def test_the_state_of_sum_is_the_total() -> None:
    tensors = draw(7)
    assert near(part("box", tensors, slice(None))[1].value, Boxcar(1.5)(*tensors[:2]).sum(-1))


def test_the_state_of_a_gaussian_is_the_logarithm_of_its_total() -> None:
    tensors = draw(7)
    state = part("sum", tensors, slice(None))[1]
    assert near(state.lse, Gaussian(2.0)(*tensors[:2]).sum(-1).log())
    far = part("sum", (tensors[0] + 1e3, *tensors[1:]), slice(None))[1]
    assert (Gaussian(2.0)(tensors[0] + 1e3, tensors[1]) == 0).all()
    assert near(far.lse, SquaredDistance(2.0)(tensors[0] + 1e3, tensors[1]).logsumexp(-1))
    assert not far.weightless.any()


@pytest.mark.parametrize("alpha", [1.5, 1.25, 2.0])
def test_the_state_of_entmax_is_its_threshold(alpha: float) -> None:
    from qkv.normalizers.sparse import Entmax

    query, key, value = draw(8)
    tau = attention_with_state(query, key, value, score=Dot(), normalizer=Entmax(alpha))[1].value
    s = Dot()(query, key) * (alpha - 1)
    weights = torch.relu(s - tau[..., None]) ** (1 / (alpha - 1))
    assert near(weights.sum(-1), torch.ones_like(tau), 4000)


def test_lse_is_for_softmax() -> None:
    state = part("mean", draw(0), slice(None))[1]
    with pytest.raises(UnsupportedError, match=r"state\.lse: expected the state of a softmax; got that of mean"):
        state.lse  # noqa: B018


@pytest.mark.parametrize("normalizer", [Sigmoid(), Sparsemax()], ids=repr)
def test_what_depends_on_the_whole_row_does_not_merge(normalizer: Normalizer) -> None:
    query, key, value = draw(0)
    whole = attention_with_state(query, key, value, normalizer=normalizer)
    assert whole[1].kind not in MERGEABLE
    with pytest.raises(UnsupportedError, match="parts: expected a normalizer whose rows can be merged"):
        merge([whole, whole])


def test_parts_must_fit() -> None:
    one = part("softmax", draw(0), slice(None))
    with pytest.raises(UnsupportedError, match="states of one normalizer; got mean and softmax"):
        merge([one, part("mean", draw(0), slice(None))])
    with pytest.raises(ShapeError, match="parts: expected outputs"):
        merge([one, (one[0][:, :2], RowState("softmax", one[1].value[:, :2]))])
    with pytest.raises(ShapeError, match="parts: expected outputs"):
        merge([(one[0], RowState("softmax", one[1].value[:, :2]))])
    with pytest.raises(ShapeError, match="parts: expected at least one pair"):
        merge([])


@pytest.mark.parametrize("normalizer", [kind() for kind in KINDS if kind.mergeable], ids=lambda x: type(x).__name__)
def test_state_and_merge_of_a_normalizer_give_the_whole_row(normalizer: Normalizer) -> None:
    scores, value = torch.rand(3, 9, dtype=torch.float64), torch.rand(9, 2, dtype=torch.float64)
    visible = torch.rand(3, 9) < 0.7

    def over(keys: slice) -> tuple[Tensor, Tensor]:
        s, seen = scores[:, keys], visible[:, keys]
        return normalizer(s, seen) @ value[keys], normalizer.state(s, seen)

    output, state = normalizer.merge(over(slice(0, 4)), over(slice(4, 9)))
    torch.testing.assert_close(output, over(slice(0, 9))[0])
    torch.testing.assert_close(state, over(slice(0, 9))[1])


def test_a_normalizer_without_state_or_merge_says_so() -> None:
    class Plain(Normalizer):
        def __call__(self, scores: Tensor, visible: Tensor | None = None) -> Tensor:
            return scores

    with pytest.raises(UnsupportedError, match="normalizer: expected one with a row state; got Plain"):
        Plain().state(torch.zeros(1, 2))
    with pytest.raises(UnsupportedError, match="a normalizer whose rows can be merged"):
        Sparsemax.merge((torch.zeros(1, 2), torch.zeros(1)), (torch.zeros(1, 2), torch.zeros(1)))
