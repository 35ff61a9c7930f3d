"""The projections of queries, keys and values, as one matrix if all three inputs have one width."""

from typing import final

from torch import Tensor, nn

from qkv.linalg.matmul import apply_layer
from qkv.linalg.session import DecodingSession
from qkv.nn.inputs import expect_input
from qkv.nn.scores import xavier_uniform
from qkv.values.plain_modules import plain_weights


@final
class ProjectionInputs(nn.Module):
    """The inputs of the projections: an identity module, so that a forward hook can see them."""

    def forward(self, query: Tensor | None = None, key: Tensor | None = None, value: Tensor | None = None) -> None:
        """Receive the inputs of queries, keys and values, (..., N, width) each; None if another module provides
        them.
        """


def projections_of_torch(layer: nn.MultiheadAttention) -> list[tuple[Tensor, Tensor | None]]:
    """Return weight and bias of the query, key and value of PyTorch's layer, as views, and those of its output.

    Example:
        >>> [tuple(weight.shape) for weight, _ in projections_of_torch(nn.MultiheadAttention(8, 2, kdim=4))]
        [(8, 8), (8, 4), (8, 8), (8, 8)]
    """
    joint = layer.in_proj_weight
    weights = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight) if joint is None else joint.chunk(3)
    biases = (None,) * 3 if layer.in_proj_bias is None else layer.in_proj_bias.chunk(3)
    return [*zip(weights, biases, strict=True), (layer.out_proj.weight, layer.out_proj.bias)]


@final
class Projections(nn.Module):
    """W^Q, W^K and W^V of all heads, side by side; the results are by head, (..., heads, N, D).

    If all inputs have one width, the three are one parameter: self-attention takes one product instead of three, and
    the keys and values of a memory one instead of two.

    Args:
        widths: input widths of query, key and value.
        sizes: output widths; 0 for a value that is not projected.
        head: D, the width of a head, which divides the sizes.
        bias: whether the projections have biases.

    Example:
        >>> import torch
        >>> project = Projections((8, 8, 8), (8, 4, 4), 2)
        >>> [tuple(part.shape) for part in project.together(torch.randn(1, 3, 8))]
        [(1, 4, 3, 2), (1, 2, 3, 2), (1, 2, 3, 2)]
    """

    def __init__(
        self, widths: tuple[int, int, int], sizes: tuple[int, int, int], head: int, *, bias: bool = True
    ) -> None:
        super().__init__()
        self.widths, self.sizes, self.head = widths, sizes, head
        self.heads = [size // head for size in sizes]
        self.one = len(set(widths)) == 1 and all(sizes)
        blocks = [(widths[0], sum(sizes))] if self.one else zip(widths, sizes, strict=True)
        self.inputs = ProjectionInputs()
        self.layers = nn.ModuleList(nn.Linear(*block, bias=bias) for block in blocks if block[1])
        self.reset_parameters()

    @property
    def first(self) -> nn.Module:
        """The layer of all three, or of the query, found faster than by an index."""
        return next(iter(self.layers))

    def reset_parameters(self, query_gain: float = 1.0) -> None:
        """Initialize each projection by Glorot's rule as its own matrix, queries times `query_gain`; biases zero."""
        for index in range(len(self.sizes)):
            if self.sizes[index]:
                layer, rows = self._layer(index)
                assert isinstance(layer, nn.Linear)
                xavier_uniform(layer.weight.data[rows])
                layer.weight.data[rows] *= 1.0 if index else query_gain
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias.data[rows])

    def part(self, index: int) -> tuple[Tensor | None, Tensor | None]:
        """Return weight (out, in) and bias (out) of the query (0), key (1) or value (2); None for missing ones.

        Raises:
            UnsupportedError: the layer is more than its weight and bias: it has hooks, or is an adapter or quantized.
        """
        if not self.sizes[index]:
            return None, None
        layer, rows = self._layer(index)
        weight, bias = plain_weights(layer, "projections")
        return weight[rows], None if bias is None else bias[rows]

    def query(self, x: Tensor, session: DecodingSession | None = None) -> Tensor:
        """(..., N, width) to (..., H, N, D)."""
        self._expect("query", x, 0, self.first)
        self.inputs(x)
        return self._apply_part(0, x, session)

    def memory(self, key: Tensor, value: Tensor, session: DecodingSession | None = None) -> tuple[Tensor, Tensor]:
        """Project keys and values, in one product if both come from one tensor."""
        first = self.first
        self._expect("key", key, 1, first)
        self._expect("value", value, 2, first)
        self.inputs(None, key, value)
        if key is value and self.one:
            k, v = self._split(apply_layer(first, key, session, slice(self.sizes[0], None), (self, "memory")), 1)
            return k, v
        return self._apply_part(1, key, session), self._apply_part(2, value, session)

    def together(self, x: Tensor, session: DecodingSession | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Project queries, keys and values of one input, in one product if they are one parameter."""
        if not self.one:
            return self.query(x, session), *self.memory(x, x, session)
        first = self.first
        self._expect("query", x, 0, first)
        self.inputs(x, x, x)
        q, k, v = self._split(apply_layer(first, x, session), 0)
        return q, k, v

    def _expect(self, name: str, x: Tensor, index: int, layer: nn.Module) -> None:
        hint = "The layer was created for that width: see key_width and value_width."
        expect_input(name, x, layer, self.widths[index], hint=hint)

    def _apply_part(self, index: int, x: Tensor, session: DecodingSession | None) -> Tensor:
        if not self.sizes[index]:
            return x
        layer, columns = self._layer(index)
        return self._by_head(apply_layer(layer, x, session, columns, (self, index))).transpose(-3, -2)

    def _split(self, x: Tensor, index: int) -> list[Tensor]:
        """Split queries (unless index is 1), keys and values (..., N, sum of sizes), and each by head."""
        # By head first: the gradients are then joined by one operator.
        return [part.transpose(-3, -2) for part in self._by_head(x).split_with_sizes(self.heads[index:], -2)]

    def _by_head(self, x: Tensor) -> Tensor:
        """(..., N, heads · D) to (..., N, heads, D)."""
        return x.view(*x.shape[:-1], x.shape[-1] // self.head, self.head)

    def _layer(self, index: int) -> tuple[nn.Module, slice]:
        """Return the layer of a part, and the rows of the part in its weight."""
        if not self.one:
            return self.layers[index], slice(None)
        return self.first, slice(sum(self.sizes[:index]), sum(self.sizes[: index + 1]))
