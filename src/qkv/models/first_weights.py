"""The first weights of recurrent models, and of embeddings."""

from collections.abc import Iterable

from torch import Tensor, nn

from qkv.nn.scores import xavier_uniform


def initialize_cells(
    parameters: Iterable[tuple[str, Tensor]], width: int, *, by_gate: bool = False, open_forget_gate: bool = False
) -> None:
    """Initialize recurrent matrices as orthogonal, each gate by itself, other matrices by Glorot's rule, biases as 0.

    Args:
        parameters: by name; `_hh_` (in PyTorch's layers) or `from_hidden` marks those of states.
        width: of the states.
        by_gate: whether Glorot's rule is applied to each gate's rows by themselves.
        open_forget_gate: whether the forget gates of an LSTM start open: their recurrent biases are 1.

    Source: Saxe et al. 2014 (orthogonal); Glorot and Bengio 2010; Jozefowicz et al. 2015 (forget gate).

    Example:
        >>> import torch
        >>> layer = nn.GRU(3, 4)
        >>> initialize_cells(layer.named_parameters(), 4)
        >>> block, biases = layer.weight_hh_l0[:4], layer.bias_ih_l0
        >>> torch.allclose(block @ block.T, torch.eye(4), atol=1e-5), int(biases.count_nonzero())
        (True, 0)
    """
    for name, parameter in parameters:
        recurrent = "_hh_" in name or "from_hidden" in name
        if parameter.ndim < 2:
            nn.init.zeros_(parameter)
            if recurrent and open_forget_gate:
                nn.init.ones_(parameter.data[width : 2 * width])
        elif recurrent or by_gate:
            for block in parameter.data.split(width):
                nn.init.orthogonal_(block) if recurrent else xavier_uniform(block)
        else:
            xavier_uniform(parameter)


def initialize_embeddings(deviation: float, *embeddings: nn.Embedding | None) -> None:
    """Draw embeddings from a normal distribution of the given standard deviation; None is skipped."""
    for embedding in embeddings:
        if embedding is not None:
            nn.init.normal_(embedding.weight, std=deviation)
