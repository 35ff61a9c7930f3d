"""The encoder of a pointer network: numbers, vectors or words to states."""

import math
from typing import Protocol, final

import torch
from torch import Tensor, nn

from qkv.errors import ShapeError
from qkv.linalg.matmul import apply_layer
from qkv.models import recurrence
from qkv.models.checks import clean_source, padding_of
from qkv.models.encoders import CELLS, encode
from qkv.models.first_weights import initialize_cells, initialize_embeddings
from qkv.nn.blocks import TransformerBlock
from qkv.nn.dropout import Dropout
from qkv.nn.feed_forward import FeedForward
from qkv.nn.multihead import MultiHeadAttention
from qkv.nn.positions import sinusoidal


class ElementSizes(Protocol):
    """The sizes of an encoder, see `PointerConfig`."""

    @property
    def elements(self) -> str: ...  # noqa: D102
    @property
    def features(self) -> int: ...  # noqa: D102
    @property
    def encoder(self) -> str: ...  # noqa: D102
    @property
    def hidden(self) -> int: ...  # noqa: D102
    @property
    def layers(self) -> int: ...  # noqa: D102
    @property
    def heads(self) -> int: ...  # noqa: D102
    @property
    def dropout(self) -> float: ...  # noqa: D102


@final
class ElementEncoder(nn.Module):
    """Embeds elements and lets them see each other.

    Numbers are standardized, (x − mean)/scale, with one mean and scale for each feature, which `standardize` sets.

    Args:
        sizes: the pointer network's sizes.

    Source: Vinyals et al. 2015, section 2.3 (recurrent); Kool et al. 2019, "Attention, Learn to Solve Routing
        Problems!", section 3.1 (transformer).

    Example:
        >>> from qkv.models.pointer import PointerConfig
        >>> encoder = ElementEncoder(PointerConfig(features=2, encoder="transformer", hidden=8, heads=2))
        >>> states, summary = encoder(torch.rand(3, 5, 2), torch.tensor([5, 4, 5]))
        >>> states.shape, summary.shape
        (torch.Size([3, 5, 8]), torch.Size([3, 8]))
    """

    def __init__(self, sizes: ElementSizes) -> None:
        super().__init__()
        self.sizes = sizes
        words, width, cell = sizes.elements == "words", sizes.hidden, CELLS.get(sizes.encoder)
        self.embed: nn.Module = nn.Embedding(sizes.features, width) if words else nn.Linear(sizes.features, width)
        if not words:
            self.register_buffer("mean", torch.zeros(sizes.features))
            self.register_buffer("scale", torch.ones(sizes.features))
        self.recurrent = (
            None if cell is None else cell(width, width, sizes.layers, batch_first=True, bidirectional=True)
        )
        self.join = None if cell is None else nn.Linear(2 * width, width)
        count = sizes.layers if cell is None else 0
        self.blocks = nn.ModuleList(
            TransformerBlock(
                MultiHeadAttention(width, sizes.heads),
                FeedForward(width, 2 * width, sizes.dropout),
                dropout=sizes.dropout,
            )
            for _ in range(count)
        )
        self.norm = nn.LayerNorm(width) if count else nn.Identity()
        self.dropout = Dropout(sizes.dropout)
        self.reset_parameters()

    @property
    def summary_width(self) -> int:
        """The width of the summary: two directions, or one mean."""
        return self.sizes.hidden if self.recurrent is None else 2 * self.sizes.hidden

    def reset_parameters(self) -> None:
        """Initialize all parameters but those of blocks: recurrent matrices orthogonal, the others by Glorot's rule."""
        others: tuple[str, ...] = ("blocks", "norm")
        if isinstance(self.embed, nn.Embedding):
            initialize_embeddings(self.sizes.hidden**-0.5, self.embed)
            others += ("embed",)
        parameters = ((name, tensor) for name, tensor in self.named_parameters() if not name.startswith(others))
        initialize_cells(parameters, self.sizes.hidden)

    def standardize(self, mean: Tensor, scale: Tensor) -> None:
        """Set the mean and the scale of each feature, (F,) each; a scale of 0 counts as 1.

        Raises:
            ShapeError: they are not (F,).
        """
        for name, tensor in (("mean", mean), ("scale", scale)):
            if tensor.shape != (self.sizes.features,):
                expected = f"({self.sizes.features},), one number per feature"
                raise ShapeError(name, expected, f"{tuple(tensor.shape)}", "Compute it over all elements.")
        self.get_buffer("mean").copy_(mean)
        self.get_buffer("scale").copy_(torch.where(scale > 0, scale, 1))

    def forward(self, elements: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Encode elements.

        Args:
            elements: numbers (B, S, F), or ids of words (B, S), int64; entries at or after a row's length are never
                read.
            lengths: (B,), int64.

        Returns:
            States (B, S, M), 0 in the padding, and a summary of each row: the recurrent layer's last states (B, 2M), or
            the mean state (B, M).

        Raises:
            ShapeError: a shape or dtype is wrong.
        """
        x_BSM, real = self._embedded(elements, lengths)
        if self.recurrent is not None:
            both, last = recurrence.run(self.recurrent, self.dropout(torch.tanh(x_BSM)), lengths)
            assert self.join is not None
            states = apply_layer(self.join, both)
            return self.dropout(torch.where(real[..., None], states, 0)), torch.cat([last[0], last[1]], -1)
        padded = padding_of(lengths, x_BSM.shape[1])
        x_BSM = self.dropout(x_BSM + sinusoidal(x_BSM.shape[1], x_BSM.shape[2], device=x_BSM.device, dtype=x_BSM.dtype))
        states = torch.where(real[..., None], self.norm(encode(self.blocks, x_BSM, padded)), 0)
        return states, states.sum(1) / lengths.clamp(min=1)[:, None]

    def _embedded(self, elements: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        if self.sizes.elements == "words":
            ids, real = clean_source(elements, lengths, self.sizes.features)
            embedded: Tensor = self.embed(ids) * math.sqrt(self.sizes.hidden)
            return embedded, real
        real = _real(elements, lengths, self.sizes.features)
        numbers = (elements - self.get_buffer("mean")) / self.get_buffer("scale")
        embedded = self.embed(torch.where(real[..., None], numbers, 0))
        return embedded, real


def _real(source: Tensor, lengths: Tensor, features: int) -> Tensor:
    if source.ndim != 3 or source.shape[2] != features or source.shape[1] == 0:
        expected = f"(B, S, {features}) with S at least 1"
        hint = "The last dimension holds the features of an element."
        raise ShapeError("elements", expected, f"{tuple(source.shape)}", hint)
    if lengths.shape != source.shape[:1] or lengths.dtype != torch.int64:
        got = f"{lengths.dtype} of shape {tuple(lengths.shape)}"
        hint = "Give one length for each row."
        raise ShapeError("lengths", f"int64 of shape ({source.shape[0]},)", got, hint)
    return torch.arange(source.shape[1], device=source.device) < lengths[:, None]
