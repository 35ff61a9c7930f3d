"""Linear layers: computed from their weights by the fastest library, or called where they are not plain."""

from collections.abc import Hashable

from torch import Tensor, nn

from qkv.linalg.matmul import kept_weight, linear
from qkv.linalg.session import DecodingSession
from qkv.values.plain import is_plain


def apply_layer(layer: nn.Module, x: Tensor, session: DecodingSession | None = None) -> Tensor:
    """Return layer(x).

    Args:
        layer: a plain `nn.Linear`, computed by `qkv.linalg.matmul.linear`; any other module is called.
        x: (..., M).
        session: keeps the weight of a plain layer packed.

    Returns:
        (..., N).

    Example:
        >>> import torch
        >>> apply_layer(nn.Linear(3, 4), torch.zeros(2, 3)).shape
        torch.Size([2, 4])
        >>> apply_layer(nn.ReLU(), torch.tensor([-1.0]))
        tensor([0.])
    """
    if is_plain(layer, nn.Linear):
        return linear(x, layer.weight, layer.bias, kept_weight(session, layer))  # type: ignore[arg-type]
    output: Tensor = layer(x)
    return output


def apply_columns(
    layer: nn.Module, columns: slice, x: Tensor, session: DecodingSession | None = None, owner: Hashable = None
) -> Tensor:
    """Return layer(x)[..., columns], computing only those columns if the layer is plain.

    Args:
        layer, x, session: as for `apply_layer`.
        columns: of the output.
        owner: what the session keeps the rows of the weight under.

    Example:
        >>> import torch
        >>> layer, x = nn.Linear(3, 4), torch.randn(2, 3)
        >>> torch.allclose(apply_columns(layer, slice(1, 3), x), layer(x)[:, 1:3], atol=1e-6)
        True
    """
    if is_plain(layer, nn.Linear):
        bias = None if layer.bias is None else layer.bias[columns]  # type: ignore[index]
        return linear(x, layer.weight[columns], bias, kept_weight(session, owner))  # type: ignore[index]
    output: Tensor = layer(x)[..., columns]
    return output
