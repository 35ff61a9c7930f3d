"""The normalizers by name: the list that flags, `explain`, the viewer, trace files, the plan cache and the docs read.

A new normalizer that algorithms know by name is its class and its entry here.
"""

from functools import partial
from typing import TYPE_CHECKING

from qkv.values.catalog import Catalog, Entry, Equation, Fields, Number

if TYPE_CHECKING:
    from qkv.normalizers.base import Normalizer

_Entry = partial(Entry["Normalizer"], package=__package__)


def _softmax(fields: Fields) -> Equation:
    if fields["sink"] is None:
        return Equation("exp(s)/Σexp(s)", r"\exp(s)/\sum \exp(s)")
    return Equation("exp(s)/(exp(sink) + Σexp(s))", r"\exp(s)/(\exp(\mathrm{sink}) + \sum \exp(s))")


def _sigmoid(fields: Fields) -> Equation:
    if fields["bias"] is None:
        return Equation("σ(s − log n)", r"\sigma(s - \log n)")
    return Equation("σ(s + b)", r"\sigma(s + b)")


def _entmax(fields: Fields) -> Equation:
    alpha = f"{float(fields['alpha']):g}"
    tex = rf"{_ENTMAX.tex},\ \alpha = {alpha}"
    return Equation(f"{_ENTMAX.plain}, α = {alpha}", tex)


_ENTMAX = Equation("max(0, (α−1)s − τ)^(1/(α−1))", r"\max(0, (\alpha-1)s - \tau)^{1/(\alpha-1)}")

NORMALIZERS: Catalog["Normalizer"] = Catalog(
    [
        _Entry(
            name="softmax",
            kind="Softmax",
            javascript="(s, p) => softmax(s, p.sink)",
            equation=_softmax({"sink": None}),
            equation_with=_softmax,
            note="a sink adds exp(sink) to the denominator",
            source="Bahdanau et al. 2015, eq. 6; sink: Miller 2023; Xiao et al. 2024",
        ),
        _Entry(
            name="sum",
            kind="Sum",
            javascript="(s) => divided(s, total(s))",
            equation=Equation("s/Σs", r"s/\sum s"),
            note="for scores that are never negative: their default, Nadaraya-Watson regression",
            source="Nadaraya 1964; Watson 1964",
        ),
        _Entry(
            name="mean",
            kind="Mean",
            javascript="(s) => divided(s, s.length)",
            equation=Equation("s/n", "s/n"),
            note="n is the number of keys that the row may see",
            source="Wang et al. 2018, section 3.2",
        ),
        _Entry(
            name="hard",
            kind="Hard",
            javascript="(s) => hard(s)",
            equation=Equation("1 at the largest s, else 0", r"1 \text{ at the largest } s, \text{ else } 0"),
            note="a database lookup; ties go to the first key",
            source="Dive into Deep Learning, section 11.1",
        ),
        _Entry(
            name="identity",
            kind="Identity",
            javascript="(s) => s",
            equation=Equation("s", "s"),
            note="the scores are the weights",
        ),
        _Entry(
            name="sparsemax",
            kind="Sparsemax",
            javascript="(s) => entmax(s, 2)",
            equation=Equation("max(0, s − τ)", r"\max(0, s - \tau)"),
            note="τ makes the weights sum to one",
            source="Martins and Astudillo 2016",
        ),
        _Entry(
            name="entmax",
            kind="Entmax",
            javascript="(s, p) => entmax(s, p.alpha)",
            equation=_ENTMAX,
            equation_with=_entmax,
            numbers=(Number("alpha", default=1.5, low=1.05, high=4.0, step=0.05, above=1),),
            note="α is 1.5 by default; 2 is sparsemax",
            source="Peters et al. 2019",
        ),
        _Entry(
            name="sigmoid",
            kind="Sigmoid",
            javascript="(s, p) => s.map((x) => 1 / (1 + Math.exp(-x - (p.bias ?? -Math.log(s.length)))))",
            equation=_sigmoid({"bias": None}),
            equation_with=_sigmoid,
            note="each weight on its own; n is the number of keys that the row may see",
            source="Ramapuram et al. 2024, eq. 3",
        ),
    ]
)
"""Every normalizer that has a name."""
