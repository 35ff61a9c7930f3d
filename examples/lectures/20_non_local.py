"""Other scores and sums: the non-local block sees a whole image, a convolution three pixels.

Dot product and 1/n instead of softmax is one of its four forms; a small network on pairs (concatenation) is another.
"""

from pathlib import Path

import torch
from examples.mechanisms.drawing import heat, keep, panels, run
from torch import Tensor, nn

import qkv
from qkv.nn.non_local import FORMS, NonLocalBlock

HEIGHT, WIDTH, CHANNELS = 9, 12, 4


def main(folder: Path) -> None:
    """Draw which pixels one pixel's output depends on: for a convolution, and the weights of each form."""
    torch.manual_seed(0)
    image = 0.3 * torch.randn(1, CHANNELS, HEIGHT, WIDTH)
    image[:, :, 2, 2] = image[:, :, 6, 9] = 2.0  # two similar pixels, far apart
    asked = 2 * WIDTH + 2
    figure, axes = panels(5, width=2.2, height=2.1)
    near = reach(nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1), image)
    assert int((near > 0).sum()) == 9, "a local range"
    heat(axes[0], near, "3 × 3 convolution")
    for axis, form in zip(axes[1:], FORMS, strict=True):
        block = NonLocalBlock(CHANNELS, form=form)
        assert torch.equal(block(image), image), "a new block changes nothing"
        with qkv.record(block) as trace:
            block(image)
        (weights,) = (trace.weights(layer)[0] for layer in trace.layers)
        assert weights.shape == (HEIGHT * WIDTH, HEIGHT * WIDTH), "every pixel and every other"
        total = float(weights[asked].sum())
        print(f"{form:18} a row of weights sums to {total:.3f}")
        assert (abs(total - 1) < 1e-4) == (form.endswith("gaussian")), "1/n makes no distribution"
        heat(axis, weights[asked].view(HEIGHT, WIDTH).abs(), form)
    for axis in axes:
        axis.set(xlabel="", ylabel="")
    keep(figure, folder, "20_non_local")


def reach(layer: nn.Module, image: Tensor) -> Tensor:
    """Return how much the output at (2, 2) changes with each pixel."""
    image = image.clone().requires_grad_()
    (slope,) = torch.autograd.grad(layer(image)[0, :, 2, 2].sum(), image)
    return slope[0].abs().sum(0)


if __name__ == "__main__":
    run(main)
