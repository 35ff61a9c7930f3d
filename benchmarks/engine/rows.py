"""All rows by name: the table of mechanisms, and single problems with their targets."""

from collections.abc import Mapping
from itertools import product
from typing import Any, Protocol

import numpy as np
from benchmarks.engine.cases import BOTH, FORWARD
from benchmarks.engine.comparison import Comparison, Say
from benchmarks.engine.growth import Growth
from benchmarks.engine.mechanisms import Size
from benchmarks.engine.rivals import COMPILED, FLEX, FULL, FUSED, KEOPS, KERAS
from benchmarks.engine.timing import Run, Watch
from benchmarks.engine.training import Training


class Row(Protocol):
    """Something that can be measured."""

    @property
    def name(self) -> str:
        """The row's name for `--row`."""

    def measure(self, say: Say, watch: Watch) -> dict[str, Any]:
        """Measure, and return the record to store."""


TABLE_SIZES = (16, 256, 4096)
CHOICES = 256
"""Up to this size all backends available to `auto` are timed; above it, slower ones would take minutes."""
TABLE = (
    "scaled_dot", "causal", "dropout", "learned_bias", "softcap", "sink", "cosine", "bilinear", "additive", "concat",
    "concat_leaky", "concat_mean", "squared_distance", "gaussian", "boxcar", "epanechnikov", "uniform", "identity",
    "mean", "sigmoid", "hard", "sparsemax", "entmax",
)  # fmt: skip
"""The mechanisms of the table, in its order."""

ASKED: dict[str, dict[tuple[str, str], float]] = {
    "squared_distance_4096": {(FORWARD, FULL): 4, (BOTH, FULL): 4},
    "gaussian_4096": {(FORWARD, FULL): 4, (BOTH, FULL): 4},
    "boxcar_4096": {(FORWARD, FULL): 3, (BOTH, FULL): 2.5},
    "epanechnikov_4096": {(FORWARD, FULL): 3, (BOTH, FULL): 2.5},
    "sparsemax_4096": {(BOTH, FULL): 5},
    "entmax_4096": {(BOTH, FULL): 5},
}


def heads(n: int, width: int = 64, value_width: int = 64) -> Size:
    """Eight heads, equally many queries and keys."""
    return Size((1, 8), n, n, width, value_width)


def one_head(n: int, width: int, value_width: int = 64) -> Size:
    """One head, equally many queries and keys."""
    return Size((1,), n, n, width, value_width)


def tanh_floor(size: Size) -> Mapping[str, Run]:
    """The bare loop of additive attention's divisions and multiply-adds, forward."""
    from benchmarks.kernels_tanh_sum import Shape, floor

    random = np.random.default_rng(0)
    shape = Shape("", size.leading[0], size.queries, size.keys, size.width, size.value_width)
    return {FORWARD: floor(shape, lambda *dims: random.normal(size=dims).astype(np.float32))}


def _table() -> list[Row]:
    return [
        Comparison(f"{name}_{n}", name, heads(n), asked=ASKED.get(f"{name}_{n}", {}), backends=n <= CHOICES)
        for name, n in product(TABLE, TABLE_SIZES)
    ]


def _against_sdpa() -> list[Row]:
    least = {(what, FUSED): 0.95 for what in (FORWARD, BOTH)}
    rows: list[Row] = [
        Comparison(f"sdpa_{name}_{n}", name, heads(n), (FUSED, FLEX), least)
        for name, n in product(("scaled_dot", "causal"), (256, 1024))
    ]
    others = (FUSED, FLEX, COMPILED, KERAS, KEOPS)
    wide = {(FORWARD, FUSED): 2.0, (BOTH, FUSED): 1.3}
    return [
        *rows,
        Comparison("sdpa_scaled_dot_4096", "scaled_dot", heads(4096), others, least),
        Comparison("sdpa_causal_4096", "causal", heads(4096), (FUSED, FLEX, COMPILED, KERAS), least),
        Comparison("wide_values_4096", "scaled_dot", heads(4096, 64, 128), (FUSED,), wide, backends=True),
        Comparison("narrow_values_4096", "scaled_dot", heads(4096, 64, 32), (FUSED,), wide, backends=True),
        Comparison("sdpa_dropout_4096", "dropout", heads(4096), (FUSED, COMPILED), {(BOTH, FUSED): 2.0}),
        Comparison("sdpa_learned_bias_4096", "learned_bias", heads(4096), (FUSED, COMPILED), {(BOTH, FUSED): 1.3}),
        Comparison("flex_softcap_4096", "softcap", heads(4096), (FLEX, COMPILED), passes=(FORWARD,)),
    ]


def _additive() -> list[Row]:
    sentence = {
        (FORWARD, FULL): 60.0,
        (FORWARD, COMPILED): 8.0,
        (FORWARD, "floor"): 0.6,
        (BOTH, FULL): 20.0,
        (BOTH, COMPILED): 10.0,
    }
    others = (COMPILED, KERAS, KEOPS)
    step = {(what, FULL): 3.0 for what in (FORWARD, BOTH)}
    return [
        Comparison("additive_512", "projected", Size((4,), 512, 512, 128, 64), others, sentence, floor=tanh_floor),
        Comparison("decoder_step", "projected", Size((64,), 1, 50, 256, 256), others, step, floor=tanh_floor),
    ]


def _distances() -> list[Row]:
    safe = {(what, FULL): 2.0 for what in (FORWARD, BOTH)}
    others = (COMPILED, KEOPS)
    kernels = ("squared_distance", "gaussian", "boxcar", "epanechnikov")
    return [
        Comparison("squared_distance_safe_4096", "squared_distance", heads(4096), (), safe, outlier=True),
        Comparison("gaussian_safe_4096", "gaussian", heads(4096), (), safe, outlier=True),
        *(Comparison(f"rivals_{name}_4096", name, heads(4096), others, ASKED[f"{name}_4096"]) for name in kernels),
    ]


def _linear() -> list[Row]:
    n = 16_384
    both = (FORWARD, BOTH)
    return [
        Comparison("mean_16384", "mean", one_head(n, 64), (KEOPS,), {(what, FULL): 50.0 for what in both}),
        Comparison("concat_mean_16384", "concat_mean", one_head(n, 64), (KEOPS,), {(w, FULL): 100.0 for w in both}),
        *(
            Comparison(f"{name}_16384", name, one_head(n, 1), (KEOPS,), {(w, FULL): 100.0 for w in both})
            for name in ("boxcar_line", "epanechnikov_line")
        ),
        Growth("growth_mean", "mean", 64, 64),
        Growth("growth_concat_mean", "concat_mean", 64, 64),
        Growth("growth_boxcar_line", "boxcar_line", 1, 64),
        Growth("growth_epanechnikov_line", "epanechnikov_line", 1, 64),
    ]


ROWS: dict[str, Row] = {
    row.name: row
    for row in (
        *_additive(),
        *_against_sdpa(),
        *_distances(),
        *_linear(),
        Training("translation_rnn"),
        Training("translation_rnn_bfloat16", precision="bfloat16"),
        Training("translation_rnn_characters", pieces="char"),
        *_table(),
    )
}
