"""Program 3: Nadaraya-Watson regression on ragged data: each data set has its own number of points."""

import torch

import qkv


def test_ragged_regression() -> None:
    counts = [5, 12, 1]
    sets = [(torch.rand(n, 1) * 4, torch.randn(n, 1)) for n in counts]
    x = torch.nn.utils.rnn.pad_sequence([x for x, _ in sets], batch_first=True)
    y = torch.nn.utils.rnn.pad_sequence([y for _, y in sets], batch_first=True)
    grid = torch.linspace(0, 4, 21)[:, None].expand(3, 21, 1)

    kernel = qkv.scores.Gaussian(bandwidth=0.7)
    mask = qkv.masks.lengths(torch.tensor(counts))
    smooth = qkv.attention(grid, x, y, score=kernel, mask=mask)

    for i, (points, heights) in enumerate(sets):
        weights = torch.exp(-((grid[i] - points.T) ** 2) / (2 * 0.7**2))
        expected = (weights @ heights) / weights.sum(1, keepdim=True)
        assert torch.allclose(smooth[i], expected, atol=1e-5)
