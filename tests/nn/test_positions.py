"""Positions match the papers' equations, at any offset and length."""

import math
from collections.abc import Callable
from typing import Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.pairs import in_turn
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from qkv.errors import ConfigError, ShapeError
from qkv.masks.patterns import causal
from qkv.nn.multihead import MultiHeadAttention
from qkv.nn.positions import PositionEmbedding, RopeScaling, Rotary, rotary, sinusoidal


@pytest.mark.parametrize("width", [1, 6, 7])
def test_entries_are_those_of_the_paper(width: int) -> None:
    table = sinusoidal(50, width, dtype=torch.float64)
    for place in (0, 1, 49):
        for entry in range(width):
            angle = place / 10_000 ** (entry // 2 * 2 / width)
            expected = math.cos(angle) if entry % 2 else math.sin(angle)
            assert table[place, entry].item() == pytest.approx(expected, abs=1e-12)


def test_a_later_start_continues_the_table() -> None:
    table = sinusoidal(40, 16)
    for start in (1, 17, 39):
        torch.testing.assert_close(sinusoidal(40 - start, 16, start=start), table[start:], rtol=0, atol=2e-7)


def test_a_table_that_was_written_over_is_right_the_next_time() -> None:
    first = sinusoidal(40, 16)
    kept = first.clone()
    assert torch.equal(first.zero_(), torch.zeros(40, 16))
    assert torch.equal(sinusoidal(40, 16), kept)


def test_tables_and_what_lies_beyond_the_largest_agree() -> None:
    beyond = sinusoidal(4100, 6)
    assert torch.equal(sinusoidal(90, 6, start=4000), beyond[4000:4090])
    with torch.inference_mode():
        sinusoidal(300, 10)
    assert not sinusoidal(300, 10).is_inference()


def test_far_positions_keep_their_digits() -> None:
    far = sinusoidal(1, 2, start=10_000_019)
    assert far[0, 0].item() == pytest.approx(math.sin(10_000_019), abs=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(shift=st.integers(0, 5000), pairs=st.integers(1, 4), seed=st.integers(0, 99))
def test_products_of_rotated_vectors_depend_on_differences_only(
    shift: int, pairs: int, seed: int, dtype: torch.dtype
) -> None:
    random = torch.Generator().manual_seed(seed)
    query, key = (torch.randn(5, 2 * pairs, generator=random, dtype=dtype) for _ in range(2))
    near = rotary(query) @ rotary(key, start=3).mT
    far = rotary(query, start=shift) @ rotary(key, start=shift + 3).mT
    torch.testing.assert_close(far, near, rtol=0, atol=2e-5 if dtype == torch.float32 else 1e-11)


def test_rotation_is_that_of_the_paper_and_keeps_lengths() -> None:
    x = torch.randn(9, 6, dtype=torch.float64)
    rotated = rotary(x, start=4)
    for place in range(9):
        for pair in range(3):
            angle = (4 + place) * 10_000 ** (-2 * pair / 6)
            a, b = x[place, 2 * pair : 2 * pair + 2].tolist()
            expected = [a * math.cos(angle) - b * math.sin(angle), a * math.sin(angle) + b * math.cos(angle)]
            torch.testing.assert_close(rotated[place, 2 * pair : 2 * pair + 2].tolist(), expected)
    torch.testing.assert_close(rotated.norm(dim=-1), x.norm(dim=-1))


def test_rotation_of_any_layout_is_the_same() -> None:
    x = torch.randn(2, 7, 3, 8)
    straight = rotary(x.transpose(1, 2).contiguous())
    torch.testing.assert_close(rotary(x.transpose(1, 2)), straight, rtol=0, atol=1e-6)
    odd = torch.randn(2, 3, 7, 9)[..., 1:]
    torch.testing.assert_close(rotary(odd), rotary(odd.contiguous()), rtol=0, atol=1e-6)


def test_rotation_in_half_precision_is_rounded_once() -> None:
    x = torch.randn(50, 8).bfloat16()
    assert torch.equal(rotary(x), rotary(x.float()).bfloat16())


def test_traced_rotation_is_the_same() -> None:
    x = torch.randn(2, 5, 8)
    traced = torch.compile(rotary, fullgraph=True, backend="eager")(x, start=9)
    torch.testing.assert_close(traced, rotary(x, start=9), rtol=0, atol=1e-6)


def test_a_table_made_in_inference_mode_serves_training() -> None:
    with torch.inference_mode():
        rotary(torch.ones(1, 14), base=77.0)
    x = torch.ones(1, 14, requires_grad=True)
    rotary(x, base=77.0).sum().backward()
    assert x.grad is not None


def test_rotation_is_a_linear_map_with_a_gradient() -> None:
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda y: rotary(y, start=3), x)


def test_an_odd_width_cannot_be_rotated() -> None:
    with pytest.raises(ShapeError, match=r"x: expected an even width.*got 5"):
        rotary(torch.zeros(2, 5))


@pytest.mark.parametrize("kind", ["sinusoidal", "learned"])
def test_added_positions_continue_where_they_stopped(kind: Literal["sinusoidal", "learned"]) -> None:
    add, x = PositionEmbedding(kind, 8, 12), torch.zeros(2, 12, 8)
    whole = add(x)
    parts = torch.cat([add(x[:, :5]), add(x[:, 5:], start=5)], 1)
    torch.testing.assert_close(parts, whole)


def test_learned_positions_end_and_say_so() -> None:
    with pytest.raises(ShapeError, match="at most 4 positions; got 5"):
        PositionEmbedding("learned", 8, 4)(torch.zeros(1, 3, 8), start=2)
    with pytest.raises(ConfigError, match="sinusoidal"):
        PositionEmbedding("lerned", 8, 4)  # type: ignore[arg-type]


POSITIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sinusoidal": lambda x: x + sinusoidal(x.shape[-2], x.shape[-1]),
    "embedding": lambda x: PositionEmbedding("halves", x.shape[-1])(x),
    "rotary": lambda x: rotary(x, start=1),
    "rotary share": lambda x: Rotary(share=0.5)(x, 3),
    "rotary scaled": Rotary(scaling=RopeScaling("yarn", 4.0)),
}


@pytest.mark.parametrize(("name", "kind", "width"), in_turn(POSITIONS, ["fake", "real", "symbolic"], [44, 52], every=3))
def test_tables_are_not_kept_from_tensors_without_numbers(name: str, kind: str, width: int) -> None:
    """What was traced, or computed with fake tensors, is right, and so is every later call of that size."""
    positions, x = POSITIONS[name], torch.randn(2, 7, width)
    if kind == "fake":
        with FakeTensorMode():
            assert positions(torch.empty(2, 7, width)).shape == x.shape
    else:
        graph = make_fx(positions, tracing_mode=kind)(torch.randn(2, 7, width))
        torch.testing.assert_close(graph(x), positions(x))
    assert type(positions(x)) is Tensor
    torch.testing.assert_close(positions(x), torch.func.vmap(positions)(x))


@pytest.mark.parametrize("width", [2, 4, 6, 10])
@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("scaling", [None, RopeScaling("linear", 2.0)])
def test_a_share_that_is_no_pairs_is_refused(share: float, width: int, scaling: RopeScaling | None) -> None:
    """A share of no feature at all would leave a layer without positions."""
    positions, x = Rotary(share=share, scaling=scaling), torch.randn(1, 5, 2 * width)
    count = int(width * share)
    if count % 2 == 0 and count:
        layer = MultiHeadAttention(2 * width, 2, positions=positions)
        assert layer(x, mask=causal()).isfinite().all()
        return
    with pytest.raises(ConfigError, match=rf"heads.*{count} of {width}"):
        MultiHeadAttention(2 * width, 2, positions=positions)
    with pytest.raises(ShapeError, match=f"even.*got {count}"):
        positions(x[..., :width])


@pytest.mark.parametrize("start", [-1, -3, -257, -5_000])
@pytest.mark.parametrize("rotation", [Rotary(), Rotary(share=0.5), Rotary(scaling=RopeScaling("linear", 2.0))])
def test_positions_before_the_first_are_positions_too(start: int, rotation: Rotary) -> None:
    """A table has no rows for them, and an index below zero would read its last ones."""
    x = torch.randn(1, 5, 8, dtype=torch.float64)
    both = torch.cat([x.new_zeros(1, -start, 8), x], 1)
    torch.testing.assert_close(rotation(both, start)[:, -start:], rotation(x, 0))
    turned, unturned = rotation(x, start), rotation(x, 0)
    torch.testing.assert_close(turned @ turned.mT, unturned @ unturned.mT)
    late = sinusoidal(5, 8, start=-start, dtype=torch.float64).flip(0)
    early = sinusoidal(5, 8, start=start - 4, dtype=torch.float64)
    torch.testing.assert_close(early[:, ::2], -late[:, ::2])
    torch.testing.assert_close(early[:, 1::2], late[:, 1::2])


@pytest.mark.parametrize("kind", ["sinusoidal", "halves", "learned"])
def test_padding_before_the_first_position_is_read_there(kind: Literal["sinusoidal", "halves", "learned"]) -> None:
    embed, x = PositionEmbedding(kind, 8, length=16), torch.randn(2, 5, 8)
    for start in (-1, -3, -9):
        torch.testing.assert_close(embed(x, start), embed(x, torch.tensor([start, start])))


@pytest.mark.parametrize(("length", "width"), [(-1, 4), (3, 0)])
def test_sizes_of_no_table(length: int, width: int) -> None:
    with pytest.raises(ConfigError):
        sinusoidal(length, width)


@pytest.mark.parametrize(
    "layer",
    [Rotary(), *(PositionEmbedding(kind, 6, length=20) for kind in ("sinusoidal", "halves", "learned"))],
    ids=["rotary", "sinusoidal", "halves", "learned"],
)
def test_an_exported_layer_takes_any_length(layer: torch.nn.Module) -> None:
    sizes = {1: torch.export.Dim("length", min=1, max=20 if layer.state_dict() else None)}
    program = torch.export.export(layer, (torch.zeros(2, 5, 6),), dynamic_shapes=(sizes,)).module()
    for length in (1, 5, 20):
        x = torch.randn(2, length, 6)
        assert torch.allclose(program(x), layer(x), atol=1e-6)
