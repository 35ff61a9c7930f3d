"""An overview of a 2,048 × 2,048 map: blocks, entropy of rows, received weight, all without the matrix.

python examples/looking.py --out docs/pictures
"""

from argparse import ArgumentParser
from pathlib import Path

import matplotlib as mpl
import torch

import qkv

mpl.use("agg")
mpl.rcParams["svg.hashsalt"] = "qkv"


def inputs(length: int) -> torch.Tensor:
    """Positions as slow and fast waves; the first position resembles all others a little."""
    place = torch.arange(length, dtype=torch.float32)[:, None]
    waves = torch.cat([torch.sin(place / 2**power) for power in range(2, 10)], -1)
    waves[0] = waves.mean(0) + 1.0
    return torch.cat([waves, torch.cos(place / 64)], -1)


def main(folder: Path) -> None:
    """Draw the map and the statistics of one pass."""
    import matplotlib.pyplot as plt

    x = inputs(2048)
    amap = qkv.attention_map(x, x, score=qkv.scores.ScaledDot(2.0), mask=qkv.masks.causal())
    found = amap.statistics("received", "entropy", topk=1)
    assert found.received is not None
    assert found.entropy is not None
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(10, 3), layout="constrained")
    left.imshow(amap.pooled(128, 128, "max").log10().clamp(min=-6).numpy(), cmap="cividis", extent=(0, 2048, 2048, 0))
    left.set(title="largest weight of a block, log₁₀", xlabel="key", ylabel="query")
    middle.plot(found.entropy.numpy(), linewidth=0.8)
    middle.set(title="entropy of each row", xlabel="query", ylabel="nats")
    right.semilogy(found.received.numpy(), linewidth=0.8)
    right.set(title="what each key receives", xlabel="key")
    figure.savefig(folder / "looking.svg", metadata={"Date": None})


if __name__ == "__main__":
    parser = ArgumentParser(description="Draw what a model looks at.")
    parser.add_argument("--out", type=Path, default=Path("pictures"), help="folder of the figure (pictures)")
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    main(folder)
