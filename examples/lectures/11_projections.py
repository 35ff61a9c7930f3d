"""Q = K = V = X is not enough: without W_q and W_k a token attends to similar tokens, and attention is symmetric.

The task: copy the previous token. Inputs contain sinusoidal positions; a rotation as W_q solves the task exactly,
because PE(p−1) is a rotation of PE(p). Without parameters the scores are symmetric, and no token can attend only to
the previous one.
"""

from pathlib import Path

import torch
from examples.mechanisms.drawing import heat, keep, panels, run

import qkv

LENGTH, WIDTH = 16, 32


def main(folder: Path) -> None:
    """Draw the weights without parameters, and with a W_q that rotates positions back by one."""
    torch.manual_seed(0)
    position = qkv.nn.sinusoidal(LENGTH, WIDTH)
    x = torch.cat([position, torch.randn(LENGTH, 4)], -1)
    sharp = qkv.scores.ScaledDot(scale=3.0)
    plain = qkv.attention_with_weights(x, x, x, score=sharp)[1]
    symmetric = x @ x.mT
    assert torch.equal(symmetric, symmetric.mT), "who is looked at looks back"
    w_q, w_k = back_by_one(), torch.eye(WIDTH, WIDTH + 4)
    output, weights = qkv.attention_with_weights(x @ w_q.mT, x @ w_k.mT, x[:, WIDTH:], score=sharp)
    before = torch.arange(LENGTH - 1)
    assert bool((weights.argmax(-1)[1:] == before).all()), "each finds the one before it"
    wrong = (output[1:] - x[:-1, WIDTH:]).abs().mean()
    without = (plain @ x[:, WIDTH:])[1:] - x[:-1, WIDTH:]
    print(f"copying the token before: mean error {without.abs().mean():.2f} without parameters, {wrong:.2f} with W_q")
    # V = X: each output is a weighted sum of all inputs, in their span; W_v allows any output.
    assert wrong < without.abs().mean() / 2
    figure, axes = panels(2, width=2.8, height=2.6)
    heat(axes[0], plain, "Q = K = X")
    heat(axes[1], weights, "Q = W_q X, one place back")
    keep(figure, folder, "11_projections")


def back_by_one() -> torch.Tensor:
    """Return the rotation from PE(p) of width M to PE(p − 1), zero outside the position dimensions."""
    rate = 10_000.0 ** (-torch.arange(0, WIDTH, 2) / WIDTH)
    blocks = [torch.tensor([[c, -s], [s, c]]) for c, s in zip(rate.cos().tolist(), rate.sin().tolist(), strict=True)]
    return torch.nn.functional.pad(torch.block_diag(*blocks), (0, 4))


if __name__ == "__main__":
    run(main)
