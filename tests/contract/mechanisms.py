"""The tables of everything the contract covers: scores, normalizers, masks, dtypes.

To add a backend, list it in `BACKENDS`; to add a score, normalizer or mask, add a line here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from tests.here import here
from torch import Tensor

from qkv.masks.base import Mask
from qkv.masks.patterns import causal, dense, documents, lengths, span, window
from qkv.normalizers.base import Normalizer
from qkv.normalizers.dense import Hard, Identity, Mean, Sigmoid, Softmax, Sum
from qkv.normalizers.sparse import Entmax, Sparsemax
from qkv.planner.registry import BACKENDS
from qkv.scores.base import Score
from qkv.scores.free import Learned, Uniform
from qkv.scores.kernels import Boxcar, Epanechnikov, Gaussian, SquaredDistance, squared_distance
from qkv.scores.products import Bilinear, Cosine, Dot, ScaledDot
from qkv.scores.sums import Additive, Concat

EVERYWHERE = tuple(name for name in BACKENDS if name not in ("flex", "gpu"))
"""The backends of CPUs; the others refuse every problem that is not on a GPU."""
ON_CPU = here(*EVERYWHERE)
"""Those of them that run here."""

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
BATCH, HEADS, QUERIES, VALUE_WIDTH = 2, 2, 32, 32  # 4,096 outputs
KEYS, HIDDEN = 40, 6

Tensors = Mapping[str, Tensor]
Pairs = Callable[[Tensor, Tensor, Tensors], Tensor]


@dataclass(frozen=True)
class ScoreCase:
    """A score, the shapes of its parameters, and where it bends.

    `bend` gives for each pair a quantity that is 0 where the score or its derivative jumps.
    """

    name: str
    build: Callable[[Tensors], Score]
    shapes: Callable[[int, int], dict[str, tuple[int, ...]]] = lambda width, key_width: {}
    width: int = 32
    key_width: int = 32
    positive: tuple[str, ...] = ()
    bend: Pairs | None = None
    jumps: bool = False
    grid: bool = False


@dataclass(frozen=True)
class NormalizerCase:
    name: str
    build: Callable[[Tensors], Normalizer]
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    at_least: float | None = None
    needs_non_negative: bool = False


@dataclass(frozen=True)
class MaskCase:
    name: str
    build: Callable[[int, int, torch.Generator], Mask | Tensor | None]


def _band(query: Tensor, key: Tensor, p: Tensors) -> Tensor:
    return squared_distance(query, key, p.get("bandwidth", _LATTICE_BANDWIDTH)) - 1


def _sum(query: Tensor, key: Tensor, p: Tensors) -> Tensor:
    a, b, _, _ = Concat(p["query_vector"], p["key_vector"]).prepare(query, key)
    return a + b.mT


def _network(p: Tensors) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda query, key: torch.tanh(query[..., :, None, :] * p["weight"] + key[..., None, :, :]).sum(-1) / 2


_LATTICE_BANDWIDTH = 2.625**0.5  # no squared distance of two lattice points comes near it
_BANDWIDTH_PER_HEAD = {"shapes": lambda d, e: {"bandwidth": (HEADS,)}, "positive": ("bandwidth",)}

SCORES = (
    ScoreCase("dot", lambda p: Dot(), width=8, key_width=8),
    ScoreCase("scaled_dot", lambda p: ScaledDot()),
    ScoreCase("scaled_dot_narrow", lambda p: ScaledDot(scale=0.5), width=12, key_width=12),
    ScoreCase("scaled_dot_per_head", lambda p: ScaledDot(p["scale"]), lambda d, e: {"scale": (HEADS,)}),
    ScoreCase("scaled_dot_softcap", lambda p: ScaledDot(softcap=1.5)),
    ScoreCase("cosine", lambda p: Cosine(4.0)),
    ScoreCase("cosine_per_head", lambda p: Cosine(p["scale"]), lambda d, e: {"scale": (HEADS,)}, 5, 5),
    ScoreCase("bilinear", lambda p: Bilinear(p["weight"], 0.2), lambda d, e: {"weight": (d, e)}, 28, 32),
    ScoreCase(
        "bilinear_per_head",
        lambda p: Bilinear(p["weight"], p["scale"]),
        lambda d, e: {"weight": (HEADS, d, e), "scale": (HEADS,)},
        6,
        5,
    ),
    ScoreCase(
        "additive",
        lambda p: Additive(**p),
        lambda d, e: {"vector": (HIDDEN,), "query_weight": (HIDDEN, d), "key_weight": (HIDDEN, e)},
        5,
        7,
    ),
    ScoreCase(
        "additive_per_head",
        lambda p: Additive(**p),
        lambda d, e: {"vector": (HEADS, HIDDEN), "query_weight": (HEADS, HIDDEN, d), "key_weight": (HEADS, HIDDEN, e)},
        5,
        7,
    ),
    ScoreCase("additive_projected", lambda p: Additive(p["vector"]), lambda d, e: {"vector": (d,)}, HIDDEN, HIDDEN),
    ScoreCase(
        "concat",
        lambda p: Concat(**p),
        lambda d, e: {"query_vector": (d,), "key_vector": (e,)},
        3,
        5,
        bend=_sum,
    ),
    ScoreCase(
        "concat_leaky_per_head",
        lambda p: Concat(**p, activation="leaky_relu"),
        lambda d, e: {"query_vector": (HEADS, d), "key_vector": (HEADS, e)},
        3,
        5,
        bend=_sum,
    ),
    ScoreCase("squared_distance", lambda p: SquaredDistance(2.0), width=9, key_width=9),
    ScoreCase("squared_distance_per_head", lambda p: SquaredDistance(**p), **_BANDWIDTH_PER_HEAD, width=4, key_width=4),
    ScoreCase("squared_distance_near", lambda p: SquaredDistance(9.0), width=9, key_width=9),
    ScoreCase("gaussian", lambda p: Gaussian(2.0), width=9, key_width=9),
    ScoreCase("gaussian_near", lambda p: Gaussian(9.0), width=9, key_width=9),
    ScoreCase("gaussian_per_head", lambda p: Gaussian(**p), **_BANDWIDTH_PER_HEAD, width=4, key_width=4),
    ScoreCase("boxcar", lambda p: Boxcar(_LATTICE_BANDWIDTH), width=4, key_width=4, bend=_band, jumps=True, grid=True),
    ScoreCase("epanechnikov", lambda p: Epanechnikov(_LATTICE_BANDWIDTH), width=4, key_width=4, bend=_band, grid=True),
    ScoreCase("triangle", lambda p: Epanechnikov(_LATTICE_BANDWIDTH, 1), width=4, key_width=4, bend=_band, grid=True),
    ScoreCase(
        "epanechnikov_per_head", lambda p: Epanechnikov(**p), **_BANDWIDTH_PER_HEAD, width=1, key_width=1, bend=_band
    ),
    ScoreCase("uniform", lambda p: Uniform(), width=2, key_width=3),
    ScoreCase("learned", lambda p: Learned(_network(p)), lambda d, e: {"weight": (d,)}, 4, 4),
)

NORMALIZERS = (
    NormalizerCase("softmax", lambda p: Softmax()),
    NormalizerCase("softmax_sink", lambda p: Softmax(p["sink"]), {"sink": (HEADS,)}),
    NormalizerCase("sum", lambda p: Sum(), needs_non_negative=True),
    NormalizerCase("mean", lambda p: Mean()),
    NormalizerCase("identity", lambda p: Identity()),
    NormalizerCase("hard", lambda p: Hard()),
    NormalizerCase("sparsemax", lambda p: Sparsemax()),
    NormalizerCase("entmax", lambda p: Entmax()),
    NormalizerCase("entmax_1.3", lambda p: Entmax(1.3)),
    NormalizerCase("entmax_learned", lambda p: Entmax(p["alpha"]), {"alpha": (HEADS,)}, at_least=1.2),
    NormalizerCase("sigmoid", lambda p: Sigmoid()),
    NormalizerCase("sigmoid_bias", lambda p: Sigmoid(p["sigmoid_bias"]), {"sigmoid_bias": (HEADS,)}),
)


def _lengths(queries: int, keys: int, draw: torch.Generator) -> Mask:
    return lengths(torch.tensor([keys - 3, 5]))


def _dense(queries: int, keys: int, draw: torch.Generator) -> Tensor:
    table = torch.rand(BATCH, 1, queries, keys, generator=draw) < 0.6
    table[0, 0, queries // 2] = False
    return table


def _runs(count: int) -> Tensor:
    return torch.arange(count) // 11


MASKS = (
    MaskCase("none", lambda q, k, g: None),
    MaskCase("causal", lambda q, k, g: causal()),
    MaskCase("causal_offset", lambda q, k, g: causal(torch.tensor([-2, 5]))),
    MaskCase("causal_end", lambda q, k, g: causal(align="end")),
    MaskCase("lengths", _lengths),
    MaskCase("lengths_both", lambda q, k, g: lengths(torch.tensor([0, k]), torch.tensor([q, q - 4]))),
    MaskCase("span", lambda q, k, g: span(torch.tensor([3, 0]), torch.tensor([k - 2, 5]))),
    MaskCase("causal_and_span", lambda q, k, g: causal(2) & span(torch.tensor([4, 0]))),
    MaskCase("window", lambda q, k, g: window(3, 2)),
    MaskCase("window_beyond", lambda q, k, g: window(2, 1, offset=k - q // 2)),
    MaskCase("documents", lambda q, k, g: documents(_runs(q), _runs(k))),
    MaskCase("documents_scattered", lambda q, k, g: documents(torch.arange(q) % 3, torch.arange(k) % 4)),
    MaskCase("dense", _dense),
    MaskCase("dense_keys", lambda q, k, g: dense(torch.rand(k, generator=g) < 0.5)),
    MaskCase("causal_and_lengths", lambda q, k, g: causal(3) & _lengths(q, k, g)),
    MaskCase("causal_and_dense", lambda q, k, g: causal(3) & _dense(q, k, g)),
    MaskCase("window_or_first", lambda q, k, g: window(3, 0) | lengths(2)),
    MaskCase("not_window", lambda q, k, g: ~window(4, 4)),
)

SCORE, NORMALIZER, MASK = ({case.name: case for case in cases} for cases in (SCORES, NORMALIZERS, MASKS))
