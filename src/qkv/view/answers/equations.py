"""The equation of a mechanism, as text."""

from qkv.normalizers.base import Normalizer
from qkv.normalizers.dense import Sigmoid, Softmax
from qkv.normalizers.sparse import Entmax
from qkv.scores.base import Score
from qkv.scores.kernels import Epanechnikov
from qkv.scores.products import ScaledDot
from qkv.scores.sums import Additive, Concat
from qkv.view.answers.head import Head

_SCORES = {
    "Dot": "q·k",
    "Cosine": "c·q·k/(‖q‖‖k‖)",
    "Bilinear": "c·qᵀMk",
    "Uniform": "1",
    "SquaredDistance": "−‖q−k‖²/(2h²)",
    "Gaussian": "exp(−‖q−k‖²/(2h²))",
    "Boxcar": "1 if ‖q−k‖ ≤ h, else 0",
    "Learned": "f(q, k)",
}
_NORMALIZERS = {
    "Softmax": "exp(s)/Σexp(s)",
    "Sum": "s/Σs",
    "Mean": "s/n",
    "Identity": "s",
    "Hard": "1 at the largest s, else 0",
    "Sparsemax": "max(0, s − τ)",
}


def score_equation(score: Score) -> str:
    """Return the equation of a score.

    Example:
        >>> score_equation(ScaledDot())
        's = q·k/√D'
    """
    match score:
        case ScaledDot(scale, softcap):
            inner = "q·k/√D" if scale is None else "c·q·k"
            return f"s = {inner}" if softcap is None else f"s = c·tanh(({inner})/c), c = {softcap:g}"
        case Additive(_, query_weight, key_weight):
            sides = ("q" if query_weight is None else "W q"), ("k" if key_weight is None else "U k")
            return f"s = vᵀ tanh({sides[0]} + {sides[1]})"
        case Concat(activation=activation):
            return f"s = {activation}(a·q + b·k)"
        case Epanechnikov(power=power):
            exponent = "" if power == 1 else "²" if power == 2 else f"^{power:g}"
            return f"s = max(0, 1 − (‖q−k‖/h){exponent})"
    return f"s = {_SCORES.get(type(score).__name__, 'f(q, k)')}"


def normalizer_equation(normalizer: Normalizer) -> str:
    """Return the equation of a normalizer.

    Example:
        >>> normalizer_equation(Softmax())
        'w = exp(s)/Σexp(s)'
    """
    match normalizer:
        case Softmax(sink) if sink is not None:
            return "w = exp(s)/(exp(sink) + Σexp(s))"
        case Sigmoid(bias):
            return f"w = σ(s {'− log n' if bias is None else '+ b'})"
        case Entmax(alpha):
            shown = f"{float(alpha):g}"
            return f"w = max(0, (α−1)s − τ)^(1/(α−1)), α = {shown}"
    return f"w = {_NORMALIZERS.get(type(normalizer).__name__, 'normalize(s)')}"


def equation_of(head: Head) -> str:
    """Return a whole mechanism on one line."""
    biased = "" if head.bias is None else ", s ← s + b"
    return f"{score_equation(head.score)}{biased}; {normalizer_equation(head.normalizer)}; o = Σ w v"
