"""The scores by name: the list that flags, `explain`, the viewer, trace files, the plan cache and the docs read.

A new score is its class and its entry here; one with an algorithm of its own has a folder in `algorithms` too.
"""

from functools import partial
from typing import TYPE_CHECKING

from qkv.values.catalog import Catalog, Entry, Equation, Fields, Number

if TYPE_CHECKING:
    from qkv.scores.base import Score

_Entry = partial(Entry["Score"], package=__package__)
_BANDWIDTH = Number("bandwidth", default=1.0, low=0.01, high=100.0, step=0.01, above=0)
_POWER = Number("power", default=2.0, low=0.5, high=4.0, step=0.5, above=0)
_SCALE = Number("scale", default=1.0, low=0.1, high=100.0, step=0.1, above=0)
_SCALED = Equation("q·k/√D", r"q \cdot k/\sqrt D")


def _scaled_dot(fields: Fields) -> Equation:
    scale, cap = fields["scale"], fields["softcap"]
    scaled = _SCALED if scale is None else Equation("g·q·k", r"g\, q \cdot k")
    return scaled if cap is None else Equation(f"c·tanh({scaled.plain}/c)", rf"c \tanh({scaled.tex}/c)")


def _bilinear(fields: Fields) -> Equation:
    scale = fields["scale"]
    plain, tex = "qᵀMk", r"q^\top M k"
    unscaled = isinstance(scale, int | float) and scale == 1
    return Equation(plain, tex) if unscaled else Equation(f"g·{plain}", rf"g\, {tex}")


def _additive(fields: Fields) -> Equation:
    sides = [(side, fields[f"{name}_weight"] is None) for side, name in (("q", "query"), ("k", "key"))]
    hidden = " + ".join(side if projected else f"W_{side} {side}" for side, projected in sides)
    return Equation(f"vᵀ tanh({hidden})", rf"v^\top \tanh({hidden})")


def _concat(fields: Fields) -> Equation:
    name = fields["activation"]
    tex = name.replace("_", r"\_")
    return Equation(f"{name}(w_q·q + w_k·k)", rf"\mathrm{{{tex}}}(w_q \cdot q + w_k \cdot k)")


def _bump(fields: Fields) -> Equation:
    """max(0, 1 − (‖q−k‖/h)^power)."""
    power = fields["power"]
    if power == 1:
        return Equation("max(0, 1 − ‖q−k‖/h)", r"\max(0, 1 - \lVert q-k\rVert/h)")
    exponent = "²" if power == 2 else f"^{power:g}"
    return Equation(f"max(0, 1 − (‖q−k‖/h){exponent})", rf"\max(0, 1 - (\lVert q-k\rVert/h)^{{{power:g}}})")


SCORES: Catalog["Score"] = Catalog(
    [
        _Entry(
            name="scaled_dot",
            kind="ScaledDot",
            javascript="(q, k, p) => capped(dot(q, k) * (p.scale ?? 1 / Math.sqrt(q.length)), p.softcap)",
            equation=_SCALED,
            equation_with=_scaled_dot,
            note="with a softcap c: c·tanh(s/c)",
            source="Vaswani et al. 2017, eq. 1; softcap: Gemma Team 2024, section 2",
        ),
        _Entry(
            name="dot",
            kind="Dot",
            javascript="(q, k) => dot(q, k)",
            equation=Equation("q·k", r"q \cdot k"),
            note="under softmax the Gaussian form of Non-local Networks",
            source="Luong et al. 2015, eq. 8 (dot)",
        ),
        _Entry(
            name="cosine",
            kind="Cosine",
            javascript="(q, k, p) => p.scale * over(dot(q, k), Math.sqrt(dot(q, q) * dot(k, k)))",
            equation=Equation("g·q·k/(‖q‖‖k‖)", r"g\, q \cdot k/(\lVert q\rVert \lVert k\rVert)"),
            numbers=(_SCALE,),
            note="models learn g, from 10",
            source="Graves et al. 2014, eq. 5 and 6",
        ),
        _Entry(
            name="bilinear",
            kind="Bilinear",
            javascript="(q, k, p) => p.scale * dot(q, times(p.weight, k))",
            equation=_bilinear({"scale": 1.0}),
            equation_with=_bilinear,
            aliases=("general", "multiplicative"),
            tensors={"weight": "DE"},
            source="Luong et al. 2015, eq. 8 (general)",
        ),
        _Entry(
            name="additive",
            kind="Additive",
            javascript="(q, k, p) => bend(p.vector, times(p.query_weight, q), times(p.key_weight, k), Math.tanh)",
            equation=_additive({"query_weight": "W_q", "key_weight": "W_k"}),
            equation_with=_additive,
            aliases=("mlp", "bahdanau"),
            tensors={"vector": "A"},
            note='also Luong\'s "concat"',
            source="Bahdanau et al. 2015, appendix A.1.2",
        ),
        _Entry(
            name="nonlocal_concat",
            kind="Concat",
            javascript="(q, k, p) => leaky(dot(p.query_vector, q) + dot(p.key_vector, k), p.activation)",
            equation=_concat({"activation": "relu"}),
            equation_with=_concat,
            tensors={"query_vector": "D", "key_vector": "E"},
            note="the concatenation form of Non-local Networks; with a leaky relu that of graph attention",
            source="Wang et al. 2018, eq. 5; Veličković et al. 2018, eq. 3",
        ),
        _Entry(
            name="squared_distance",
            kind="SquaredDistance",
            javascript="(q, k, p) => -apart(q, k) / (2 * p.bandwidth ** 2)",
            equation=Equation("−‖q−k‖²/(2h²)", r"-\lVert q-k\rVert^2/(2h^2)"),
            numbers=(_BANDWIDTH,),
            note="under softmax the weights of `gaussian` under sum",
            source="Dive into Deep Learning, eq. 11.3.1",
        ),
        _Entry(
            name="gaussian",
            kind="Gaussian",
            javascript="(q, k, p) => Math.exp(-apart(q, k) / (2 * p.bandwidth ** 2))",
            equation=Equation("exp(−‖q−k‖²/(2h²))", r"\exp(-\lVert q-k\rVert^2/(2h^2))"),
            numbers=(_BANDWIDTH,),
            kernel=True,
            source="Nadaraya 1964; Watson 1964",
        ),
        _Entry(
            name="boxcar",
            kind="Boxcar",
            javascript="(q, k, p) => Number(apart(q, k) <= p.bandwidth ** 2)",
            equation=Equation("1 if ‖q−k‖ ≤ h, else 0", r"1 \text{ if } \lVert q-k\rVert \le h, \text{ else } 0"),
            numbers=(_BANDWIDTH,),
            kernel=True,
            smoothing=1.740,
            source="Dive into Deep Learning, eq. 11.2.1",
        ),
        _Entry(
            name="epanechnikov",
            kind="Epanechnikov",
            javascript="(q, k, p) => Math.max(0, 1 - (Math.sqrt(apart(q, k)) / p.bandwidth) ** p.power)",
            equation=_bump({"power": 2}),
            equation_with=_bump,
            numbers=(_BANDWIDTH, _POWER),
            kernel=True,
            smoothing=2.214,
            note="`power` changes the 2",
            source="Epanechnikov 1969",
        ),
        _Entry(
            name="triangular",
            kind="Epanechnikov",
            javascript="(q, k, p) => Math.max(0, 1 - Math.sqrt(apart(q, k)) / p.bandwidth)",
            equation=_bump({"power": 1}),
            equation_with=_bump,
            fixed={"power": 1},
            numbers=(_BANDWIDTH,),
            kernel=True,
            smoothing=2.432,
            note="the kernel that the attention lectures call Epanechnikov's",
            source="Dive into Deep Learning, eq. 11.2.1",
        ),
        _Entry(
            name="uniform",
            kind="Uniform",
            javascript="() => 1",
            equation=Equation("1", "1"),
            note="average pooling",
            source="Dive into Deep Learning, section 11.1",
        ),
        _Entry(
            name="learned",
            kind="Learned",
            javascript="(q, k, p) => "
            "bend(p.vector, plus(times(p.query_weight, q), p.query_bias), times(p.key_weight, k), relu)",
            equation=Equation("f(q, k)", "f(q, k)"),
            note="a small network on pairs, wᵀrelu(W_q q + W_k k + b); or any function",
            source="Bengio et al. 2003",
        ),
    ]
)
"""Every score that has a name.

The factors by which kernels smooth are ratios of canonical bandwidths (Marron and Nolan 1988, "Canonical kernels for
density estimation"; Härdle et al. 2004, "Nonparametric and Semiparametric Models", table 3.3).
"""
KERNELS = tuple(name for name, entry in SCORES.items() if entry.kernel)
"""The names of the kernels."""
DISTANCES = tuple(name for name, entry in SCORES.items() if entry.number("bandwidth"))
"""The names of the scores that have a bandwidth: kernels, and the squared distance."""
POWERS = tuple(name for name, entry in SCORES.items() if entry.number("power"))
"""The names of the scores that have a power."""
