"""Program 6: compute the weights and plot them."""

from pathlib import Path

import torch

import qkv


def test_plot_weights(tmp_path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    query, key, value = torch.randn(1, 6, 8), torch.randn(1, 9, 8), torch.randn(1, 9, 8)
    output, weights = qkv.attention_with_weights(query, key, value, mask=qkv.masks.causal(offset=3))
    assert torch.equal(output, qkv.attention(query, key, value, mask=qkv.masks.causal(offset=3)))

    figure, axes = pyplot.subplots()
    axes.imshow(weights[0].numpy(), vmin=0, vmax=1)
    figure.savefig(tmp_path / "weights.png")
    pyplot.close(figure)
    assert (tmp_path / "weights.png").stat().st_size > 1000

    rows = [[round(w, 4) for w in row] for row in weights[0].tolist()]
    assert len(rows) == 6
    assert rows[0][4:] == [0.0] * 5
