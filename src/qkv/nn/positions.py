"""Positions: numbers added to embeddings, or rotations of queries and keys.

Positions that only affect the scores (ALiBi, learned relative biases) are in `qkv.nn.biases`.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, final, get_args

import torch
from torch import Tensor, nn

from qkv.errors import ConfigError, ShapeError
from qkv.nn.inputs import expect_counts, expect_input, expect_integers, expect_sizes
from qkv.values.checked import checked
from qkv.values.execution import readable, traced
from qkv.values.parameters import expect_floats
from qkv.values.sharded import with_positions

Embedded = Literal["sinusoidal", "halves", "learned"]
_MIN_TABLE, _MAX_TABLE = 256, 4096
_BASE = 10_000.0


@checked
def sinusoidal(
    length: int,
    width: int,
    *,
    start: int = 0,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """PE(i, 2j) = sin(i/10000^(2j/M)), PE(i, 2j+1) = cos(i/10000^(2j/M)), at any length.

    Args:
        length: number of positions.
        width: M.
        start: the first position; with a cache, the number of cached positions.
        device: device of the result.
        dtype: dtype of the result; angles are computed in float64, so that large positions stay precise.

    Returns:
        (length, M).

    Raises:
        ConfigError: a size is out of its range, or the device or dtype is not valid.

    Source: Vaswani et al. 2017, section 3.5.

    Example:
        >>> sinusoidal(2, 4)
        tensor([[0.0000, 1.0000, 0.0000, 1.0000],
                [0.8415, 0.5403, 0.0100, 0.9999]])
    """
    device = _device(device)
    expect_counts(length=length)
    expect_sizes(width=width)
    if not dtype.is_floating_point:
        raise ConfigError("dtype", "a floating-point dtype", f"{dtype}", "Sines are fractions.")
    return _sinusoids(start, length, width, _BASE, device, dtype)


def _device(device: torch.device | str | None) -> torch.device:
    if device is None:
        return torch.get_default_device()
    try:
        return torch.device(device)
    except RuntimeError:
        raise ConfigError("device", "a device of PyTorch", f"{device!r}", 'Example: "cpu".') from None


def expect_base(base: float) -> None:
    """Check the base of rotary positions.

    Raises:
        ConfigError: it is not above 1.

    Example:
        >>> expect_base(0.5)
        Traceback (most recent call last):
        qkv.errors.ConfigError: base: expected a number above 1; got 0.5. 10000 suits most texts.
    """
    if not base > 1:
        raise ConfigError("base", "a number above 1", f"{base}", "10000 suits most texts.")


@checked
def rotary(x: Tensor, *, start: int = 0, base: float = 10_000.0) -> Tensor:
    """Rotate each pair (x_2j, x_2j+1) by the angle i·base^(−2j/D), so that q·k depends only on the difference i − j.

    Args:
        x: queries or keys by head (..., N, D), D even.
        start: the first position; with a cache, the number of cached positions.
        base: base of the wavelengths.

    Returns:
        (..., N, D) in x's dtype, with unchanged norms; rotated in at least float32.

    Raises:
        ShapeError: the width is odd.

    Source: Su et al. 2021, "RoFormer", eq. 34.

    Example:
        >>> rotary(torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
        tensor([[1.0000, 0.0000],
                [0.5403, 0.8415]])
    """
    expect_floats("x", x)
    expect_base(base)
    if x.shape[-1] % 2:
        hint = "Choose another number of heads."
        raise ShapeError("x", "an even width, because positions rotate pairs", f"{x.shape[-1]}", hint)
    return _rotated(x, start, base)


@checked
@final
@dataclass(frozen=True)
class RopeScaling:
    """How the rates of rotary positions are stretched for a context longer than that of the training.

    Args:
        kind: "linear" divides all rates by the factor; "llama3" and "yarn" only those of wavelengths that do not fit
            often enough into the original context, with a transition between.
        factor: how much longer the context is.
        original: the context of the training, in tokens; unused by "linear".
        low, high: where the transition begins and ends, in wavelengths per original context: 1 and 4 for "llama3", 1
            and 32 for "yarn".
        magnitude: queries and keys are multiplied by it; None for 1, and for "yarn" 0.1·ln(factor) + 1.
        rounded: whether "yarn" rounds the ends of the transition to whole pairs of features.

    Raises:
        ConfigError: the kind is unknown, or a number is outside its range.

    Source: Chen et al. 2023, "Extending Context Window of Large Language Models via Position Interpolation" (linear);
        Peng et al. 2023, "YaRN", section 3.2; Grattafiori et al. 2024, "The Llama 3 Herd of Models", section 3.2.

    Example:
        >>> RopeScaling("linear", 4.0).rates(4, base=10_000.0)
        tensor([0.2500, 0.0025], dtype=torch.float64)
    """

    kind: Literal["linear", "llama3", "yarn"]
    factor: float
    original: int = 8192
    low: float = 1.0
    high: float = 4.0
    magnitude: float | None = None
    rounded: bool = True

    def __post_init__(self) -> None:
        if self.kind not in ("linear", "llama3", "yarn"):
            raise ConfigError("kind", "linear, llama3 or yarn", repr(self.kind), "Others are unknown.")
        if not (self.factor > 0 and self.original >= 1 and 0 < self.low < self.high < math.inf):
            raise ConfigError("RopeScaling", "a factor above 0 and 0 < low < high", f"{self}", "See its docstring.")

    @property
    def gain(self) -> float:
        """What queries and keys are multiplied by."""
        if self.magnitude is not None:
            return self.magnitude
        return 0.1 * math.log(self.factor) + 1.0 if self.kind == "yarn" and self.factor > 1 else 1.0

    def rates(self, width: int, base: float) -> Tensor:
        """Return the angle per position of each pair of features, (width/2,), float64."""
        plain = _rates(width, base, None)
        if self.kind == "linear":
            return plain / self.factor
        if self.kind == "llama3":
            unscaled = (self.original * plain / (2 * math.pi) - self.low) / (self.high - self.low)
        else:
            # The pair of features that turns so many times in the original context.
            ends = [
                width * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(base))
                for turns in (self.high, self.low)
            ]
            first, last = (math.floor(ends[0]), math.ceil(ends[1])) if self.rounded else ends
            first, last = max(first, 0), min(last, width - 1)
            last = last + 0.001 if first == last else last
            unscaled = 1 - (torch.arange(width // 2, dtype=torch.float64, device=plain.device) - first) / (last - first)
        unscaled = unscaled.clamp(0, 1)
        return plain / self.factor * (1 - unscaled) + plain * unscaled


@checked
@final
class Rotary(nn.Module):
    """`rotary` as a module for `MultiHeadAttention(positions=...)`.

    Args:
        base: base of the wavelengths.
        share: the fraction of a head's features that is rotated, the first ones.
        scaling: how the rates are stretched for long contexts; None for not at all.

    Raises:
        ConfigError: a number is outside its range.

    Source: Su et al. 2021, "RoFormer", section 3.2.

    Example:
        >>> Rotary()(torch.ones(1, 2, 3, 4), start=7).shape
        torch.Size([1, 2, 3, 4])
    """

    def __init__(self, base: float = 10_000.0, *, share: float = 1.0, scaling: RopeScaling | None = None) -> None:
        super().__init__()
        expect_base(base)
        if not 0 < share <= 1:
            raise ConfigError("share", "a fraction in (0, 1]", f"{share}", "1 rotates all features.")
        self.base, self.share, self.scaling = base, share, scaling

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        """Rotate queries or keys (..., N, D) whose first position is `start`.

        Raises:
            ShapeError: the number of rotated features is odd or 0.
        """
        expect_floats("x", x)
        return with_positions(x, start, self._rotate)

    def _rotate(self, x: Tensor, start: Any) -> Tensor:
        if self.share == 1 and self.scaling is None:
            return rotary(x, start=start, base=self.base)
        rotated = self.rotated(x.shape[-1])
        if rotated % 2 or not rotated:
            hint = "Choose another share, or another number of heads."
            raise ShapeError(
                "x", "an even number of rotated features, because positions rotate pairs", f"{rotated}", hint
            )
        return torch.cat([_rotated(x[..., :rotated], start, self.base, self.scaling), x[..., rotated:]], -1)

    def rotated(self, width: int) -> int:
        """Return how many of `width` features are rotated."""
        return int(width * self.share)

    def extra_repr(self) -> str:
        """Show the base, and what differs from the defaults."""
        text = f"{self.base:g}" + (f", share={self.share:g}" if self.share != 1 else "")
        return text if self.scaling is None else f"{text}, {self.scaling}"


@checked
@final
class PositionEmbedding(nn.Module):
    """Position vectors added to token embeddings: sinusoidal at any length, or learned up to a maximum length.

    Args:
        kind: "sinusoidal", "halves" for all sines before all cosines, or "learned".
        width: M.
        length: maximum number of learned positions.
        skipped: positions before the first that is used.
        base: of the wavelengths of sinusoids.

    Raises:
        ConfigError: the kind is unknown.

    Source: Vaswani et al. 2017, section 3.5 (both); Gehring et al. 2017, section 3.1 (learned).

    Example:
        >>> PositionEmbedding("learned", width=8, length=16)(torch.zeros(2, 3, 8), start=13).shape
        torch.Size([2, 3, 8])
        >>> padded = PositionEmbedding("sinusoidal", 2)(torch.zeros(2, 2, 2), start=torch.tensor([0, -1]))
        >>> padded[:, :, 1]
        tensor([[1.0000, 0.5403],
                [1.0000, 1.0000]])
    """

    def __init__(self, kind: Embedded, width: int, length: int = 0, skipped: int = 0, *, base: float = _BASE) -> None:
        super().__init__()
        if kind not in get_args(Embedded):
            raise ConfigError(
                "kind", '"sinusoidal", "halves" or "learned"', repr(kind), "For rotary positions use nn.Rotary."
            )
        expect_sizes(width=width, **({"length": length} if kind == "learned" else {}))
        expect_counts(skipped=skipped)
        expect_base(base)
        self.kind, self.width, self.length, self.skipped, self.base = kind, width, length, skipped, base
        self.weight = nn.Parameter(torch.empty(length, width)) if kind == "learned" else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize the learned positions, small relative to the embedding."""
        if self.weight is not None:
            nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: Tensor, start: int | Tensor = 0) -> Tensor:
        """Add positions to embeddings (B, N, M).

        Args:
            x: (B, N, M).
            start: the position of the first embedding, of all rows or of each (B,), int64. Below zero is padding, which
                is read as if it were at the first position.

        Raises:
            ShapeError: a position exceeds the learned ones, or the embeddings have another width. Positions of each row
                are checked on the CPU, outside of graphs and transformations, where their numbers can be read.
            DtypeError: the embeddings are not a dense tensor of floating-point numbers, or a position is not an
                integer.
        """
        expect_input("x", x, None, self.width)
        return with_positions(x, start, self._add)

    def _add(self, x: Tensor, start: int | Tensor) -> Tensor:
        if isinstance(start, Tensor):
            expect_input("x", x, None, self.width, rank=3)
            expect_integers("start", start, (1,) if start.numel() == 1 else (x.shape[0],), "(B,)")
        count = x.shape[-2]
        if isinstance(start, int) and start < 0:
            start = torch.tensor([start], device=x.device)
        if not isinstance(start, Tensor):
            return x + self._rows(start, start + count, x)
        positions = (start[:, None] + torch.arange(count, device=x.device)).clamp(min=0)
        end = int(positions.max()) + 1 if readable(positions) and positions.numel() else None
        if self.weight is not None:
            self.expect(0 if end is None else end + self.skipped)
            return x + self.weight[positions + self.skipped]
        if end is None or end > _MAX_TABLE:
            angles = (positions + self.skipped).double()[..., None] * _rates(self.width, self.base, x.device)
            return x + self._arranged(_waves(angles, self.width).to(x.dtype))
        return x + self._rows(0, end, x)[positions]

    def expect(self, end: int) -> None:
        """Check that there are learned positions up to `end`.

        Raises:
            ShapeError: a position exceeds them.
        """
        if self.weight is not None and end > self.length:
            hint = "Learned positions end there: process fewer at once, or use other positions, such as rotary."
            raise ShapeError("x", f"at most {self.length} positions", f"{end}", hint)

    def _rows(self, start: int, end: int, x: Tensor) -> Tensor:
        """Return the vectors of the positions from `start` to `end`, (N, M)."""
        first = start + self.skipped
        if self.weight is not None:
            self.expect(end + self.skipped)
            return self.weight[first : end + self.skipped]
        return self._arranged(_sinusoids(first, end - start, self.width, self.base, x.device, x.dtype))

    def _arranged(self, waves: Tensor) -> Tensor:
        """Return sines and cosines in the order of this kind."""
        return waves if self.kind == "sinusoidal" else torch.cat([waves[..., ::2], waves[..., 1::2]], -1)


def _sinusoids(start: int, length: int, width: int, base: float, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return sines and cosines of `length` positions from `start`, (length, M)."""
    if not _has_table(start, start + length, _MAX_TABLE):
        return _waves(_angles(start, length, width, base, device), width).to(dtype)
    return _wave_table(_table_rows(start + length), width, base, device, dtype)[start : start + length].clone()


def _angles(
    start: int,
    length: int,
    width: int,
    base: float,
    device: torch.device | str | None,
    scaling: RopeScaling | None = None,
) -> Tensor:
    """Compute i·base^(−2j/width), or with scaled rates, (length, ⌈width/2⌉), float64."""
    position = torch.arange(start, start + length, device=device, dtype=torch.float64)
    rate = _rates(width, base, device) if scaling is None else scaling.rates(width, base).to(position.device)
    return position[:, None] * rate


def _rates(width: int, base: float, device: torch.device | str | None) -> Tensor:
    """Compute base^(−2j/width), (⌈width/2⌉,), float64."""
    return torch.exp(torch.arange(0, width, 2, device=device, dtype=torch.float64) * (-math.log(base) / width))


def _has_table(start: int, end: int, longest: int = 1 << 20) -> bool:
    """Return whether a cached table holds the positions: not under tracing, where sizes vary, nor those below 0 or
    beyond the longest table.
    """
    return not (torch.compiler.is_compiling() or traced()) and start >= 0 and end <= longest


def _table_rows(end: int) -> int:
    """Return the length of a table that covers positions up to `end`; it doubles as needed."""
    return max(_MIN_TABLE, 1 << (end - 1).bit_length())


def _waves(angle: Tensor, width: int) -> Tensor:
    """Interleave sine and cosine of each angle, (..., width)."""
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)[..., :width]


@lru_cache(maxsize=32)
def _wave_table(rows: int, width: int, base: float, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return the cached table of sinusoids of the first positions."""
    # Built outside of inference mode, because training must be able to use the cached table too.
    with torch.inference_mode(False):
        return _waves(_angles(0, rows, width, base, device), width).to(dtype)


@lru_cache(maxsize=32)
def _rotation_table(
    rows: int,
    width: int,
    base: float,
    device: torch.device,
    dtype: torch.dtype,
    scaling: RopeScaling | None = None,
) -> Tensor:
    """Return the cached e^(i·angle) of the first positions, times a scaling's gain, complex (rows, width/2)."""
    # Built outside of inference mode, because training must be able to use the cached table too.
    with torch.inference_mode(False):
        angle = _angles(0, rows, width, base, device, scaling)
        rotation = torch.polar(torch.full_like(angle, 1.0 if scaling is None else scaling.gain), angle)
        return rotation if dtype == torch.float64 else rotation.to(torch.complex64)


def _rotated(x: Tensor, start: int, base: float, scaling: RopeScaling | None = None) -> Tensor:
    """Rotate all features of queries or keys (..., N, D) whose first position is `start`."""
    length, width = x.shape[-2:]
    wide = x if x.dtype == torch.float64 else x.float()
    if _has_table(start, start + length):
        rotation = _rotation_table(_table_rows(start + length), width, base, x.device, wide.dtype, scaling)[
            start : start + length
        ]
        return torch.view_as_real(_as_complex(wide) * rotation).flatten(-2).to(x.dtype)
    rotated = _rotated_by_parts(wide, _angles(start, length, width, base, x.device, scaling))
    return (rotated if scaling is None else rotated * scaling.gain).to(x.dtype)


def _as_complex(x: Tensor) -> Tensor:
    """Pair neighbors as real and imaginary part; a view if PyTorch can make one."""
    placed = (x.storage_offset(), *x.stride()[:-1])
    viewable = x.stride(-1) == 1 and not any(step % 2 for step in placed)
    # Not `contiguous`, which returns a contiguous tensor as it is, at an odd offset too.
    pairs = x if viewable else x.clone(memory_format=torch.contiguous_format)
    return torch.view_as_complex(pairs.view(*x.shape[:-1], x.shape[-1] // 2, 2))


def _rotated_by_parts(x: Tensor, angle: Tensor) -> Tensor:
    """Rotate in real arithmetic, which compilers support better."""
    even, odd = x[..., ::2], x[..., 1::2]
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)
