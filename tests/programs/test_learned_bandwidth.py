"""Program 5: a bandwidth per head, learned like any parameter."""

import torch

import qkv


def test_learned_bandwidth() -> None:
    torch.manual_seed(0)
    x = torch.rand(2, 40, 1) * 6
    y = torch.stack([torch.sin(x[0]), torch.sin(4 * x[1])])
    log_bandwidth = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.Adam([log_bandwidth], lr=0.1)
    others = ~torch.eye(40, dtype=torch.bool)  # leave-one-out
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        fit = qkv.attention(x, x, y, score=qkv.scores.Gaussian(bandwidth=log_bandwidth.exp()), mask=others)
        loss = (fit - y).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    wide, narrow = log_bandwidth.exp().tolist()
    assert narrow < wide, "the faster wave needs the narrower kernel"
