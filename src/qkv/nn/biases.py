"""Position biases as modules that own the parameters: ALiBi, and learned relative biases, plain and in buckets."""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Self, final

import torch
from torch import Tensor, nn

from qkv.biases import Bias, alibi, relative
from qkv.errors import ConfigError, nearest
from qkv.nn.inputs import expect_counts, expect_integers, expect_numbers, expect_optional_sizes, expect_sizes
from qkv.values.checked import checked
from qkv.values.parameters import Owner
from qkv.values.plain_modules import is_watched

BIASES = ("alibi", "relative")


@checked
class BiasModule(nn.Module, Owner):
    """Parameters of a bias, for `attention(..., bias=module.value())`."""

    @abstractmethod
    def value(self, offset: int = 0) -> Bias:
        """Build the bias with the current parameters.

        Args:
            offset: the position of the first query among the keys; with a cache, the number of keys before it.
        """

    def forward(self, queries: int, keys: int, offset: int = 0) -> Tensor:
        """Expand the bias to (H, Q, K) or (Q, K), for inspection and tests."""
        expect_counts(queries=queries, keys=keys)
        device = next((x.device for x in (*self.parameters(), *self.buffers())), None)
        rows_Q1, columns_K = torch.arange(queries, device=device)[:, None], torch.arange(keys, device=device)
        return self.value(offset).tile(rows_Q1, columns_K)


@checked
@final
class AlibiBias(BiasModule):
    """−m·|i − j| with one slope m per head: 2^(−8/H), 2^(−16/H), …, down to 2^(−8).

    Args:
        heads: H; if it is not a power of two, the slopes of the next lower power come first, then every second slope
            of twice that power.
        learned: whether the slopes are learned from these values; their logarithms are the parameters, so that slopes
            stay above 0.

    Raises:
        ConfigError: `heads` is below 1.

    Source: Press et al. 2022, "Train Short, Test Long: Attention with Linear Biases", section 3.

    Example:
        >>> AlibiBias(heads=2)(1, 3, offset=2)
        tensor([[[-0.1250, -0.0625, -0.0000]],
        <BLANKLINE>
                [[-0.0078, -0.0039, -0.0000]]])
    """

    def __init__(self, heads: int, *, learned: bool = False) -> None:
        super().__init__()
        expect_sizes(heads=heads)
        logarithms = torch.empty(heads)
        if learned:
            self.log_slopes = nn.Parameter(logarithms)
        else:
            self.register_buffer("log_slopes", logarithms, persistent=False)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Set the slopes of the paper."""
        slopes = alibi_slopes(len(self.log_slopes))
        self.log_slopes.copy_(torch.tensor(slopes, device=self.log_slopes.device).log())

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        """Fill in the slopes when a layer made on the device `meta` gets memory: no checkpoint holds them."""
        empty = self.log_slopes.is_meta
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if empty and not self.log_slopes.is_meta:
            self.reset_parameters()
        return self

    def value(self, offset: int = 0) -> Bias:
        """Build ALiBi with the current slopes."""
        return alibi(self.log_slopes.exp(), offset=offset)


@checked
@final
class RelativeBias(BiasModule):
    """A learned number for each distance j − i from −W to W; larger distances share the end values. All start at 0.

    Args:
        reach: W.
        heads: H, for one set of numbers per head; None for one shared set.

    Raises:
        ConfigError: the reach is below 1.

    Source: Shaw et al. 2018, "Self-Attention with Relative Position Representations", section 3.2 (clipping); Raffel
        et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer", section 2.1
        (scalars added to the scores).

    Example:
        >>> RelativeBias(reach=2, heads=4)(5, 7).shape
        torch.Size([4, 5, 7])
    """

    def __init__(self, reach: int, heads: int | None = None) -> None:
        super().__init__()
        expect_sizes(reach=reach)
        expect_optional_sizes(heads=heads)
        self.table = nn.Parameter(torch.zeros(*(() if heads is None else (heads,)), 2 * reach + 1))

    def reset_parameters(self) -> None:
        """Set all numbers to 0."""
        nn.init.zeros_(self.table)

    def value(self, offset: int = 0) -> Bias:
        """Build the relative bias with the current table."""
        return relative(self.table, offset=offset)


_FARTHEST = 1 << 20
"""The largest value of `farthest`: the table of distances is twice as long."""


@checked
@final
class BucketedBias(BiasModule):
    """A learned number for each bucket of distances: one bucket per near distance, logarithmic buckets beyond.

    Args:
        buckets: the number of buckets, of both directions together.
        farthest: distances from this on share the last bucket.
        heads: H.
        causal: whether all buckets are for earlier keys; else half of them for each side.

    Raises:
        ConfigError: there are too few buckets, or the farthest distance is not beyond the near ones.

    Source: Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
        section 2.1.

    Example:
        >>> BucketedBias(8, 16, heads=2).bucket_of(torch.tensor([-20, -2, -1, 0, 1, 2, 20]))
        tensor([3, 2, 1, 0, 5, 6, 7])
    """

    def __init__(self, buckets: int, farthest: int, heads: int, *, causal: bool = False) -> None:
        super().__init__()
        expect_sizes(buckets=buckets, farthest=farthest, heads=heads)
        side = buckets if causal else buckets // 2
        if side < 2 or not side // 2 < farthest <= _FARTHEST:
            expected = (
                f"at least {2 if causal else 4} buckets, and a distance beyond half of a side's, to {_FARTHEST:,}"
            )
            hint = "T5 has 32 buckets to distance 128."
            raise ConfigError("buckets", expected, f"{buckets} and {farthest}", hint)
        self.side, self.farthest, self.causal = side, farthest, causal
        self.weight = nn.Parameter(torch.zeros(buckets, heads))

    def reset_parameters(self) -> None:
        """Set all numbers to 0."""
        nn.init.zeros_(self.weight)

    def bucket_of(self, distance: Tensor) -> Tensor:
        """Return the bucket of each distance j − i, int64.

        Raises:
            DtypeError: the distances are not integers.
        """
        expect_integers("distance", distance, tuple(getattr(distance, "shape", ())), "of any dimensions")
        # int8 holds -128 and not 128, and uint8 holds no negative number.
        distance = distance.long()
        exact, length = self.side // 2, (-distance).clamp(min=0) if self.causal else distance.abs()
        # In float32, as in the source: the bucket of a distance on an edge depends on the rounding.
        logarithmic = (
            torch.log(length.clamp(min=1).float() / exact) / math.log(self.farthest / exact) * (self.side - exact)
        )
        bucket = torch.where(length < exact, length, (exact + logarithmic.long()).clamp(max=self.side - 1))
        return bucket if self.causal else bucket + (distance > 0) * self.side

    def value(self, offset: int = 0) -> Bias:
        """Build the relative bias with the current numbers."""
        distance = torch.arange(-self.farthest, self.farthest + 1, device=self.weight.device)
        return relative(self.weight[self.bucket_of(distance)].T, offset=offset)


def bias_of(module: nn.Module, queries: int, keys: int, offset: int = 0) -> Bias | Tensor:
    """Build the bias of some queries over some keys.

    Args:
        module: its parameters are read; a module with hooks, or of another class, is called with these numbers.
        queries, keys: Q, K.
        offset: the position of the first query among the keys.

    Returns:
        A value; of a module that was called, what it returns: (H, Q, K) or (Q, K).

    Example:
        >>> type(bias_of(AlibiBias(2), 1, 3)).__name__
        'Alibi'
    """
    if isinstance(module, BiasModule) and not is_watched(module):
        return module.value(offset)
    expanded: Tensor = module(queries, keys, offset)
    return expanded


def at_positions(module: nn.Module, indices: Tensor, queries: int) -> Tensor:
    """Expand the bias of keys at given positions, the last of which are the queries too.

    Args:
        module: as for `bias_of`.
        indices: the position of each key (K,).
        queries: Q.

    Returns:
        (H, Q, K) or (Q, K).

    Example:
        >>> at_positions(AlibiBias(1), torch.tensor([0, 1, 1]), queries=2)
        tensor([[[-0.0039, -0.0000, -0.0000],
                 [-0.0039, -0.0000, -0.0000]]])
    """
    expect_integers("indices", indices, (-1,), "(K,)", (0, None))
    rows_Q1 = indices[-queries:, None]
    if isinstance(module, BiasModule) and not is_watched(module):
        return module.value().tile(rows_Q1, indices)
    hint = "Remove its hooks, or attend outside of the graph or transformation."
    expect_numbers("indices", indices, "a bias that is called, as for its hooks, is expanded up to the last", hint)
    end = int(indices.max()) + 1
    expanded: Tensor = module(end, end, 0)
    return expanded[..., rows_Q1, indices]


@checked
def build_bias(name: str, heads: int, *, reach: int = 128) -> BiasModule:
    """Create a bias by name.

    Args:
        name: "alibi" or "relative".
        heads: H.
        reach: W, for "relative".

    Raises:
        ConfigError: the name is unknown.

    Example:
        >>> type(build_bias("alibi", heads=8)).__name__
        'AlibiBias'
    """
    match name:
        case "alibi":
            return AlibiBias(heads)
        case "relative":
            return RelativeBias(reach, heads)
        case _:
            raise ConfigError("bias", "the name of a bias", f'"{name}"', nearest(name, BIASES))


def alibi_slopes(heads: int) -> list[float]:
    """Return the slopes of the paper for a number of heads.

    Example:
        >>> alibi_slopes(4), alibi_slopes(3)
        ([0.25, 0.0625, 0.015625, 0.00390625], [0.0625, 0.00390625, 0.25])
    """
    power = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * i / power) for i in range(1, power + 1)]
    between = [2.0 ** (-4 * i / power) for i in range(1, 2 * power, 2)]
    return slopes + between[: heads - power]
