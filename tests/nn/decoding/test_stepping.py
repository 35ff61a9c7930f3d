"""A step by the fast path equals the block's own step, and is replaced by it wherever a caller could tell."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from qkv.compiled import available
from qkv.errors import QkvError
from qkv.linalg import matmul
from qkv.linalg.packed import PackedWeight
from qkv.linalg.session import DecodingSession
from qkv.masks.patterns import lengths
from qkv.nn.blocks import BlockCache, TransformerBlock
from qkv.nn.decoding import stepping
from qkv.nn.decoding.cache import Memory
from qkv.nn.feed_forward import FeedForward
from qkv.nn.multihead import MultiHeadAttention
from qkv.nn.norms import POST_NORM, PRE_NORM

BATCH, SOURCE, WIDTH, HEADS = 32, 9, 64, 4


@pytest.fixture(autouse=True)
def packed_products(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Packed weights whatever the processor's registers, for products so small."""
    if available.why_unavailable() is not None:
        pytest.skip("no compiled kernels here")
    monkeypatch.setattr(matmul, "_packed_weight_class", lambda: PackedWeight)
    monkeypatch.setattr(matmul, "_MIN_MULTIPLICATIONS", 1)
    with torch.inference_mode():
        yield


Step = Callable[..., tuple[Tensor, BlockCache]]


@pytest.fixture
def step() -> Iterator[Step]:
    """Take a step of one block in a session of this test."""
    with DecodingSession() as session:

        def taken(
            made: TransformerBlock, x: Tensor, cache: BlockCache, real: Tensor | None, seen: Tensor | None = None
        ) -> tuple[Tensor, BlockCache]:
            out, (after,) = stepping.steps([made], x, [cache], real, seen, session)
            return out, after

        yield taken


@pytest.fixture
def direct(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each step so far, True if it took the fast path."""
    taken: list[bool] = []
    true = stepping._packed

    def packed(*given: object) -> object:
        found = true(*given)  # type: ignore[arg-type]
        taken.append(found is not None)
        return found

    monkeypatch.setattr(stepping, "_packed", packed)
    return taken


def block(
    norm_first: bool = True, score: str = "scaled_dot", width: int = WIDTH, heads: int = HEADS, hidden: int = 2 * WIDTH
) -> TransformerBlock:
    torch.manual_seed(0)
    with torch.inference_mode(False):
        made = TransformerBlock(
            MultiHeadAttention(width, heads, score=score),
            FeedForward(width, hidden),
            PRE_NORM if norm_first else POST_NORM,
            cross=MultiHeadAttention(width, heads, score=score),
        ).eval()
        for parameter in made.parameters():
            nn.init.normal_(parameter, std=0.2)
    return made


def started(made: TransformerBlock, real: Tensor | None = None) -> BlockCache:
    mask = None if real is None else lengths(real)
    return made.step(torch.randn(BATCH, 1, WIDTH), made.begin(torch.randn(BATCH, SOURCE, WIDTH)), mask)[1]


def compare(step: Step, made: TransformerBlock, steps: int = 20, real: Tensor | None = None) -> None:
    cache = other = started(made, real)
    mask = None if real is None else lengths(real)
    for _ in range(steps):
        x = torch.randn(BATCH, 1, WIDTH)
        (out, cache), (expected, other) = step(made, x, cache, real), made.step(x, other, mask)
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
        assert cache.past is not None
        assert other.past is not None
        torch.testing.assert_close(cache.past.key, other.past.key, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(cache.past.value, other.past.value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("score", ["scaled_dot", "dot"])
@pytest.mark.parametrize("padded", [True, False])
def test_steps_are_the_blocks_own(direct: list[bool], norm_first: bool, score: str, padded: bool, step: Step) -> None:
    real = torch.randint(1, SOURCE + 1, (BATCH,)) if padded else None
    compare(step, block(norm_first=norm_first, score=score), real=real)
    assert all(direct)


@pytest.mark.parametrize("norm_first", [True, False])
def test_widths_that_fill_no_panel(direct: list[bool], norm_first: bool, step: Step) -> None:
    made = block(norm_first, width=36, heads=3, hidden=50)
    cache = other = made.step(torch.randn(37, 1, 36), made.begin(torch.randn(37, 5, 36)))[1]
    for _ in range(4):
        x = torch.randn(37, 1, 36)
        (out, cache), (expected, other) = step(made, x, cache, None), made.step(x, other)
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    assert all(direct)


@pytest.mark.parametrize("norm_first", [True, False])
def test_blocks_follow_one_another(direct: list[bool], norm_first: bool) -> None:
    stack = [block(norm_first=norm_first, **more) for more in ({}, {"score": "dot"}, {})]
    caches = others = tuple(map(started, stack))
    session = DecodingSession()
    for _ in range(3):
        x = expected = torch.randn(BATCH, 1, WIDTH)
        out, caches = stepping.steps(stack, x, caches, None, None, session)
        grown = []
        for made, cache in zip(stack, others, strict=True):
            expected, after = made.step(expected, cache)
            grown.append(after)
        others = tuple(grown)
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    assert all(direct)


def test_norms_without_parameters(direct: list[bool], step: Step) -> None:
    made = block()
    with torch.inference_mode(False):
        made.around_cross.norm = nn.LayerNorm(WIDTH, eps=1e-3, elementwise_affine=False)
        made.around_feed.norm = nn.LayerNorm(WIDTH, bias=False)
    compare(step, made.eval(), steps=2)
    assert all(direct)


def test_a_row_does_not_depend_on_those_beside_it(direct: list[bool], step: Step) -> None:
    made, half = block(), torch.arange(BATCH // 2)
    cache, x = started(made), torch.randn(BATCH, 1, WIDTH)
    out = step(made, x, cache, None)[0]
    assert torch.equal(step(made, x[half], cache.select(half), None)[0], out[half])
    assert all(direct)


def test_futures_of_one_source_see_their_own_past(direct: list[bool], step: Step) -> None:
    made, width = block(), 3
    cache, seen = started(made), torch.ones(BATCH, width, 1, dtype=torch.bool)
    other = cache
    for _ in range(6):
        own = torch.eye(width, dtype=torch.bool).expand(BATCH, width, width)
        seen = torch.cat([seen & (torch.rand(seen.shape) < 0.7), own], -1)
        x = torch.randn(BATCH, width, WIDTH)
        out, cache = step(made, x, cache, None, seen)
        expected, other = made.step(x, other, None, seen)
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    assert all(direct)


def test_earlier_states_stay_as_they_were(step: Step) -> None:
    made = block()
    cache, x, y = started(made), torch.randn(BATCH, 1, WIDTH), torch.randn(BATCH, 1, WIDTH)
    one = step(made, x, cache, None)
    step(made, y, cache, None)
    again = step(made, x, cache, None)
    assert torch.equal(one[0], again[0])
    assert one[1].past is not None
    assert again[1].past is not None
    assert torch.equal(one[1].past.key, again[1].past.key)


CHANGES: dict[str, Callable[[TransformerBlock], object]] = {
    "a number": lambda made: made.feed_forward.expand.weight.mul_(2),
    "memory": lambda made: setattr(made.around_self.norm.weight, "data", torch.rand(WIDTH)),
    "a parameter": lambda made: setattr(made.feed_forward.contract, "bias", nn.Parameter(torch.rand(WIDTH))),
    "a module": lambda made: setattr(made.feed_forward, "contract", nn.Linear(2 * WIDTH, WIDTH).eval()),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changed_weights_are_those_of_now(
    direct: list[bool], change: Callable[[TransformerBlock], object], step: Step
) -> None:
    made = block()
    cache, x = started(made), torch.randn(BATCH, 1, WIDTH)
    before = step(made, x, cache, None)[0]
    with torch.inference_mode(False), torch.no_grad():
        change(made)
    after = step(made, x, cache, None)[0]
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, made.step(x, cache)[0], rtol=1e-5, atol=1e-5)
    assert all(direct)


class Subclass(nn.Linear):
    """A layer that computes what it is derived from, which its class does not tell."""


class Rounded(nn.Parameter):
    """A weight with products of its own, as quantized ones have: its functions are called, its numbers not read."""


def rounded(layer: nn.Linear) -> None:
    layer.weight = Rounded(layer.weight)


OTHERWISE: dict[str, Callable[[TransformerBlock], object]] = {
    "a hook": lambda made: made.feed_forward.expand.register_forward_hook(lambda *_: None),
    "training": lambda made: made.train(),
    "another activation": lambda made: setattr(made.feed_forward, "activation", "gelu"),
    "another backend": lambda made: setattr(made.cross_attention.attention, "backend", "reference"),
    "another layer": lambda made: setattr(made.feed_forward, "expand", Subclass(WIDTH, 2 * WIDTH).eval()),
    "another tensor": lambda made: rounded(made.feed_forward.expand),
    "another forward": lambda made: setattr(made.feed_forward.expand, "forward", made.feed_forward.expand.forward),
    "another width": lambda made: made.double(),
}


@pytest.mark.parametrize("change", OTHERWISE.values(), ids=OTHERWISE)
def test_what_is_not_as_usual_goes_the_usual_way(
    direct: list[bool], change: Callable[[TransformerBlock], object], step: Step
) -> None:
    made = block()
    with torch.inference_mode(False):
        change(made)
    dtype = made.around_self.norm.weight.dtype
    memory, x = torch.randn(BATCH, SOURCE, WIDTH, dtype=dtype), torch.randn(BATCH, 1, WIDTH, dtype=dtype)
    cache = made.step(x, made.begin(memory))[1]
    torch.testing.assert_close(step(made, x, cache, None)[0], made.step(x, cache)[0])
    assert not any(direct)


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_few_rows_take_the_fast_path(rows: int, direct: list[bool], step: Step) -> None:
    made = block()
    x = torch.randn(rows, 1, WIDTH)
    cache = made.step(x, made.begin(torch.randn(rows, SOURCE, WIDTH)))[1]
    torch.testing.assert_close(step(made, x, cache, None)[0], made.step(x, cache)[0], rtol=1e-5, atol=1e-5)
    assert direct == [True]


@pytest.mark.parametrize("what", ["lengths", "visible", "cache"])
def test_what_does_not_fit_is_left_to_the_modules(what: str, direct: list[bool], step: Step) -> None:
    made, x = block(), torch.randn(BATCH, 1, WIDTH)
    cache = started(block(heads=2) if what == "cache" else made)
    real = torch.full((BATCH - 1,), SOURCE) if what == "lengths" else None
    seen = torch.ones(BATCH - 1, 1, 2, dtype=torch.bool) if what == "visible" else None
    with pytest.raises((QkvError, RuntimeError)):
        step(made, x, cache, real, seen)
    assert direct == [False]


def test_a_hook_that_comes_later_is_called(direct: list[bool], step: Step) -> None:
    made, called = block(), []
    cache, x = started(made), torch.randn(BATCH, 1, WIDTH)
    step(made, x, cache, None)
    hook = made.cross_attention.attention.register_forward_hook(lambda *_: called.append(1))
    step(made, x, cache, None)
    hook.remove()
    step(made, x, cache, None)
    assert (direct, called) == ([True, False, True], [1])


def test_gradients_go_the_usual_way(direct: list[bool], step: Step) -> None:
    made = block()
    with torch.inference_mode(False):
        cache = made.begin(torch.randn(BATCH, SOURCE, WIDTH))
        x = torch.randn(BATCH, 1, WIDTH)
        out, cache = step(made, x, cache, None)
        out = step(made, x, cache, None)[0]
        assert out.requires_grad
    assert not any(direct)


def test_a_memory_without_room_is_taken_too(step: Step) -> None:
    made = block()
    cache = BlockCache(Memory(*torch.randn(2, BATCH, HEADS, 3, WIDTH // HEADS)), started(made).memory)
    x = torch.randn(BATCH, 1, WIDTH)
    torch.testing.assert_close(step(made, x, cache, None)[0], made.step(x, cache)[0], rtol=1e-5, atol=1e-5)


def test_other_defaults_change_nothing(direct: list[bool], step: Step) -> None:
    made = block()
    cache, x = started(made), torch.randn(BATCH, 1, WIDTH)
    expected = made.step(x, cache)[0]
    torch.set_default_dtype(torch.float64)
    try:
        out = step(made, x, cache, None)[0]
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    assert all(direct)


def test_a_source_without_positions_goes_the_usual_way(direct: list[bool], step: Step) -> None:
    made, x = block(), torch.randn(BATCH, 1, WIDTH)
    cache = made.step(x, made.begin(torch.randn(BATCH, 0, WIDTH)))[1]
    torch.testing.assert_close(step(made, x, cache, None)[0], made.step(x, cache)[0])
    assert not any(direct)


def test_without_a_session_the_modules_run(direct: list[bool]) -> None:
    made, x = block(), torch.randn(BATCH, 1, WIDTH)
    cache = started(made)
    out, _ = stepping.steps([made], x, [cache], None)
    assert torch.equal(out, made.step(x, cache)[0])
    assert not direct


def test_two_sessions_of_one_block_do_not_meet(direct: list[bool]) -> None:
    made, sources = block(), [torch.randn(BATCH, SOURCE, WIDTH) for _ in range(2)]
    xs = torch.randn(6, BATCH, 1, WIDTH)
    caches = [made.step(xs[0], made.begin(source))[1] for source in sources]
    expected = []
    for cache in caches:
        alone, state, session = [], (cache,), DecodingSession()
        for x in xs:
            out, state = stepping.steps([made], x, state, None, None, session)
            alone.append(out)
        expected.append(alone)
    with DecodingSession() as one, DecodingSession() as other:
        for place, x in enumerate(xs):
            for which, session in enumerate((one, other)):
                out, (caches[which],) = stepping.steps([made], x, [caches[which]], None, None, session)
                assert torch.equal(out, expected[which][place])
    assert all(direct)
