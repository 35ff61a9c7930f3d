"""Weights of a map are weights: at most 1 where they are normalized, with no negative entropy, and exact."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from qkv.engine.describe import Arguments
from qkv.functional import attention_with_state, attention_with_state_alone
from qkv.introspect.lazy_map import AttentionMap, attention_map
from qkv.introspect.tiles import SHORT
from qkv.masks.patterns import causal, dense, lengths
from qkv.normalizers.base import Normalizer
from qkv.normalizers.dense import Hard, Softmax
from qkv.normalizers.sparse import Entmax, Sparsemax
from qkv.scores.base import Score
from qkv.scores.free import Uniform
from qkv.scores.kernels import Epanechnikov, Gaussian, SquaredDistance
from qkv.scores.products import Dot, ScaledDot
from qkv.scores.sums import Additive

SCORES: tuple[Score, ...] = (
    Dot(),
    ScaledDot(5.0),
    ScaledDot(softcap=40.0),
    SquaredDistance(0.3),
    Gaussian(0.5),
    Epanechnikov(30.0),
    Additive(torch.full((8,), 20.0)),
)
NORMALIZERS: tuple[Normalizer | None, ...] = (
    None, Softmax(), Softmax(3.0), Sparsemax(), Entmax(1.5), Entmax(1.3), Entmax(torch.tensor(1.7)), Hard()
)  # fmt: skip
STATES = ("own", "given", "rounded")


def map_of(query: Tensor, key: Tensor, how: str, **options: object) -> AttentionMap:
    """A map with its own state, with that of a call, or with one that PyTorch's kernel rounded."""
    if how == "own":
        return attention_map(query, key, **options)  # type: ignore[arg-type]
    if how == "given":
        state = attention_with_state(query, key, key, **options)[1]  # type: ignore[arg-type]
    else:
        given = {"bias": None, "dropout": 0.0, "generator": None, "enable_gqa": False, **options}
        state = attention_with_state_alone(query, key, key, Arguments(**given), "auto", rounded=True)[1]  # type: ignore[arg-type]
    return attention_map(query, key, **options, state=state)  # type: ignore[arg-type]


@settings(max_examples=80)
@given(
    score=st.sampled_from(SCORES),
    normalizer=st.sampled_from(NORMALIZERS),
    dtype=st.sampled_from((torch.float64, torch.float32, torch.bfloat16)),
    how=st.sampled_from(STATES),
    size=st.floats(0.1, 30),
    seed=st.integers(0, 999),
)
def test_no_weight_exceeds_one_and_no_entropy_is_negative(
    score: Score, normalizer: Normalizer | None, dtype: torch.dtype, how: str, size: float, seed: int
) -> None:
    """Rows of 0 to 9 visible keys, with scores of any size."""
    g = torch.Generator().manual_seed(seed)
    query, key = ((size * torch.randn(2, n, 8, generator=g)).to(dtype) for n in (9, 9))
    mask = causal(-1) & lengths(torch.tensor([9, 4]))
    amap = map_of(query, key, how, score=score, normalizer=normalizer, mask=mask)
    u = torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    for part in (amap.dense(), amap[..., 0:5], amap[..., 1:3, 0:2], amap.peak()):
        assert (part >= 0).all()
        assert (part <= 1).all()
    assert (amap.entropy() >= 0).all()
    # The only key of a row, in a part of it and in all of it.
    only = attention_map(query, key, score=score, normalizer=normalizer, mask=mask).row(1)
    assert ((only.sum(-1) == 1) | (only.sum(-1) == 0) | isinstance(normalizer, Softmax)).all()
    if how == "own" and not (isinstance(normalizer, Softmax) and normalizer.sink is not None):
        total = amap.dense().sum(-1, dtype=torch.float64)
        assert ((total - 1).abs() <= 16 * u)[total != 0].all()


@pytest.mark.parametrize("normalizer", [Softmax(), Sparsemax(), Entmax(1.5), Entmax(1.25)], ids=repr)
@pytest.mark.parametrize("how", STATES[:2])
def test_large_scores_that_are_exact_have_exact_weights(normalizer: Normalizer, how: str) -> None:
    """Integer vectors: every product is exact in float32, so nothing but the normalizer rounds."""
    g = torch.Generator().manual_seed(0)
    query, key = (torch.randint(-6, 7, (3, n, 8), generator=g).float() for n in (40, 50))
    key[:, 1] = key[:, 0]
    s = query.double() @ key.double().mT
    assert s.abs().max() > 134
    amap, expected = map_of(query, key, how, score=Dot(), normalizer=normalizer), normalizer(s)
    for part, exact in (
        (amap.dense(), expected),
        (amap[..., 0:20], expected[..., :20]),
        (amap.column(1), expected[..., 1]),
    ):
        assert (part.double() - exact).abs().max() <= 4 * 2.0**-24


@pytest.mark.parametrize("visible", [1, 4700])
def test_a_long_row_has_the_entropy_of_its_weights(visible: int) -> None:
    """More keys than a tile holds, in the compiled pass; scores of some hundreds round to 3e-5."""
    g = torch.Generator().manual_seed(0)
    query, key = (8 * torch.randn(n, 16, generator=g) for n in (300, 5000))
    mask = lengths(visible)
    found = attention_map(query, key, mask=mask).statistics("entropy", "peak", "total", topk=2)
    weights = attention_map(query.double(), key.double(), mask=mask).dense()
    assert found.entropy is not None
    assert found.peak is not None
    assert (found.entropy >= 0).all()
    assert (found.peak <= 1).all()
    if visible == 1:
        assert (found.entropy < 1e-7).all()
        assert (found.peak == 1).all()
    assert (found.entropy - torch.special.entr(weights).sum(-1)).abs().max() < 2e-4
    assert (found.peak.double() - weights.amax(-1)).abs().max() < 6e-5


ONE_KEY = (
    *((Dot(), normalizer) for normalizer in (Softmax(), Sparsemax(), Entmax(1.5), Entmax(1.3), Hard())),
    *((score, None) for score in (SquaredDistance(0.3), Gaussian(0.5), Additive(torch.full((8,), 20.0)), Uniform())),
    (Epanechnikov(1e4), None),
)


@settings(max_examples=60)
@given(
    mechanism=st.sampled_from(ONE_KEY),
    dtype=st.sampled_from((torch.float64, torch.float32, torch.float16)),
    how=st.sampled_from(STATES),
    size=st.floats(0.1, 30),
    keys=st.sampled_from((9, 300)),
    seed=st.integers(0, 999),
)
def test_the_only_key_of_a_row_has_all_of_its_weight(
    mechanism: tuple[Score, Normalizer | None], dtype: torch.dtype, how: str, size: float, keys: int, seed: int
) -> None:
    """However large its score is. A state that the caller passed, and part of a long row, are off by u·|s|."""
    score, normalizer = mechanism
    g = torch.Generator().manual_seed(seed)
    query, key = ((size * torch.randn(2, n, 8, generator=g)).to(dtype) for n in (5, keys))
    only = seed % keys
    # All queries of the first item see one key; those of the second see all.
    mask = dense(torch.stack([torch.arange(keys) == only, torch.ones(keys, dtype=torch.bool)])[:, None, :])
    amap = map_of(query, key, how, score=score, normalizer=normalizer, mask=mask)
    u = torch.finfo(torch.float32 if how == "rounded" else torch.promote_types(dtype, torch.float32)).eps
    exponent = SquaredDistance(score.bandwidth) if isinstance(score, Gaussian) else score
    off = 8 * u * (1 + exponent(query.double(), key.double()).abs().max().item())
    rows = (amap.dense()[0, :, only], amap[..., 1:3, :][0, :, only], amap.row(2)[0, only])
    found = amap.statistics("total", "received", "peak", "entropy", topk=1)
    assert found.total is not None
    assert found.received is not None
    assert found.peak is not None
    assert found.weights is not None
    assert found.entropy is not None
    of_rows = (*rows, found.total[0], found.received[0, only] / 5, found.peak[0], found.weights[0, :, 0])
    for part in of_rows:
        assert (part <= 1).all()
        assert (part >= (1 if how == "own" else 1 - off)).all()
    for part in (amap[0, :, only], amap.column(only)[0]):
        assert (part <= 1).all()
        assert (part >= (1 if how == "own" and keys <= SHORT else 1 - off)).all()
    assert (found.entropy[0] >= 0).all()
    assert (found.entropy[0] <= (0 if how == "own" else off)).all()
    total = amap.dense().sum(-1, dtype=torch.float64)
    assert ((total - 1).abs() <= 16 * u + (0 if how == "own" else off)).all()
