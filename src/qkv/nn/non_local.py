"""The non-local block: every position of a sequence, image or video attends to every other."""

from typing import Literal, final, get_args

import torch
from torch import Tensor, nn

from qkv.errors import ShapeError, expect_name
from qkv.nn.attention import Attention
from qkv.nn.distance_scores import ConcatScore
from qkv.nn.inputs import expect_input, expect_optional_sizes, expect_sizes
from qkv.nn.scores import FixedScore, ScoreModule, initialize_linear, score_of
from qkv.normalizers.base import Normalizer
from qkv.normalizers.dense import Mean, Softmax
from qkv.scores.products import Dot
from qkv.values.checked import checked
from qkv.values.parameters import expect_floats

Form = Literal["gaussian", "embedded_gaussian", "dot", "concat"]


@checked
@final
class NonLocalBlock(nn.Module):
    """z_i = W_z y_i + x_i with y_i = (1/C(x)) Σ_j f(x_i, x_j) g(x_j), over all positions of any number of dimensions.

    | form | f(x_i, x_j) | C(x) |
    |---|---|---|
    | "gaussian" | exp(x_iᵀ x_j) | Σ_j f |
    | "embedded_gaussian" | exp(θ(x_i)ᵀ φ(x_j)) | Σ_j f |
    | "dot" | θ(x_i)ᵀ φ(x_j) | N |
    | "concat" | relu(w_fᵀ [θ(x_i), φ(x_j)]) | N |

    A Gaussian divided by its sum is a softmax, so the first two forms are ordinary attention. The last two divide by
    the number N of positions, and take time linear in N.

    Args:
        channels: C, of the input and the output.
        inner: the width of θ, φ and g; None for half of C, as in the paper.
        form: f.

    Raises:
        ConfigError: the form is unknown, or a width is below one.

    Source: Wang et al. 2018, "Non-local Neural Networks", eq. 1 to 6; W_z is initialized to zero, so that a block
        inserted in a trained network changes nothing at first (section 3.3).

    Example:
        >>> block = NonLocalBlock(8)
        >>> image = torch.randn(2, 8, 5, 7)
        >>> torch.equal(block(image), image)
        True
    """

    def __init__(self, channels: int, inner: int | None = None, form: Form = "embedded_gaussian") -> None:
        super().__init__()
        expect_sizes(channels=channels)
        expect_optional_sizes(inner=inner)
        inner = max(1, channels // 2) if inner is None else inner
        expect_name("form", form, get_args(Form), "the name of a form")
        self.channels, self.form = channels, form
        plain = form == "gaussian"
        self.theta = None if plain else nn.Linear(channels, inner)
        self.phi = None if plain else nn.Linear(channels, inner)
        self.g = nn.Linear(channels, inner)
        self.score: ScoreModule = ConcatScore(inner, inner) if form == "concat" else FixedScore(Dot())
        normalizer: Normalizer = Mean() if form in ("dot", "concat") else Softmax()
        self.attention = Attention(normalizer=normalizer)
        self.output = nn.Linear(inner, channels)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize θ, φ and g; W_z is zero."""
        initialize_linear(self.theta, self.phi, self.g)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Let every position attend to every other.

        Args:
            x: (B, C, N) for sequences, (B, C, H, W) for images, (B, C, T, H, W) for videos.

        Returns:
            The same shape.

        Raises:
            ShapeError: the number of channels is wrong, or there is no position dimension.
            DtypeError: the input is not a dense tensor of the layer's element type and device.
        """
        expect_floats("x", x)
        if x.ndim < 3 or x.shape[1] != self.channels:
            expected = f"shape (B, {self.channels}, N) or (B, {self.channels}, H, W)"
            hint = "Channels come second, as in torch.nn.Conv2d."
            raise ShapeError("x", expected, f"{tuple(x.shape)}", hint)
        x_BNC = x.flatten(2).mT
        expect_input("x", x_BNC, self.g)
        query = x_BNC if self.theta is None else self.theta(x_BNC)
        key = x_BNC if self.phi is None else self.phi(x_BNC)
        y_BNI = self.attention(query, key, self.g(x_BNC), score=score_of(self.score).value())
        z: Tensor = torch.add(self.output(y_BNI).mT.reshape(x.shape), x)
        return z
