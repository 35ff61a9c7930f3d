"""The maps of a scene: tiles, tracks and progress of any head, in bounded memory."""

from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor

from qkv.errors import ConfigError
from qkv.view.answers.answer import Numbers, numbers
from qkv.view.answers.attribution import gradients_of, rollout_of
from qkv.view.answers.background import Background
from qkv.view.answers.byte_lru import ByteLRU
from qkv.view.answers.head import head_of, norms
from qkv.view.answers.pooling import SIDE
from qkv.view.answers.pyramid import Pooling, Pyramid, Statistic, TileIndex
from qkv.view.answers.weights import GivenWeights, HeadWeights, MeanWeights
from qkv.view.scene import Scene

PYRAMIDS = 512 << 20
"""Maximum bytes of all pyramids together, except for a single larger one."""
TILES = 64 << 20
"""Maximum bytes of cached tiles."""
_GRADIENTS = 128 << 20
"""Maximum bytes of cached gradients, except for those of a single larger layer."""
Quantity = str
"""weight; contribution; rollout; gradient, or gradient.N for row N of the answer."""
QUANTITIES = ("weight", "contribution", "rollout", "gradient")


@final
class Maps:
    """The matrices of all heads, and of their mean, at all zoom levels.

    Everywhere, a head of None is the mean over the heads of the layer.

    Args:
        scene: the scene.
        on_error: called with the error if exact levels could not be computed.
    """

    def __init__(self, scene: Scene, on_error: Callable[[Exception], None]) -> None:
        self._scene = scene
        self.background = Background(on_error)
        self._pyramids = ByteLRU[Pyramid](PYRAMIDS, lambda pyramid: pyramid.bytes, self.background.drop)
        self._gradients = ByteLRU[Tensor](_GRADIENTS, lambda gradients: gradients.nbytes)
        self._tiles = ByteLRU[Numbers](TILES, lambda tile: len(tile.content))

    @property
    def bytes(self) -> int:
        """The memory of pyramids and tiles, now or when they are done."""
        return self._pyramids.bytes + self._tiles.bytes

    def tile(self, layer: int, head: int | None, position: TileIndex, pooling: Pooling, quantity: Quantity) -> Numbers:
        """Return a tile; the first request starts the computation of the map's exact levels."""
        pyramid = self.pyramid(layer, head, quantity)
        _expect_level(pyramid, position.level)
        for side, at, cells in zip(("row", "column"), position[1:], pyramid.size(position.level), strict=True):
            if at * SIDE >= max(cells, 1):
                got, hint = str(at), f"Level {position.level} has {cells} cells there."
                raise ConfigError(side, f"a tile from 0 to {(cells - 1) // SIDE}", got, hint)
        self._begin(pyramid)
        name = (layer, head, position, pooling, quantity)
        content = self._tiles.find(name)
        if content is None:
            content = numbers(*pyramid.tile(position, pooling))
            if content.state == "exact":
                self._tiles.put(name, content)
        return content

    def track(self, layer: int, head: int | None, statistic: Statistic, level: int) -> Numbers:
        """Return a statistic of every query or key, pooled to a level: (1, n)."""
        pyramid = self.pyramid(layer, head, "weight")
        if statistic == "entropy" and not pyramid.weights.head.non_negative:
            got = f"entropy of {pyramid.weights.head.kind} weights"
            hint = "Request peak or received."
            raise ConfigError("what", "a statistic defined for negative weights", got, hint)
        _expect_level(pyramid, level)
        self._begin(pyramid)
        values, exact = pyramid.track(statistic)
        return numbers(_pooled(values, level, statistic)[None], exact)

    def progress(self, layer: int, head: int | None, quantity: Quantity) -> dict[str, Any]:
        """Return how much of a map is exact."""
        pyramid = self.pyramid(layer, head, quantity)
        rows = pyramid.shape[0]
        fraction = pyramid.done / rows if rows else 1.0
        return {"done": fraction, "state": self.background.state(pyramid), "levels": pyramid.levels}

    def cancel(self, layer: int, head: int | None) -> None:
        """Stop computing a head's maps."""
        for pyramid in self._of(layer, head):
            self.background.cancel(pyramid)

    def resume(self, layer: int, head: int | None) -> None:
        """Resume computing them."""
        for pyramid in self._of(layer, head):
            self.background.resume(pyramid)

    def pyramid(self, layer: int, head: int | None, quantity: Quantity) -> Pyramid:
        """Return the pyramid of a head's matrix."""
        return self._pyramids.get((layer, head, quantity), lambda: self._built(layer, head, quantity))

    def _built(self, layer: int, head: int | None, quantity: Quantity) -> Pyramid:
        pyramid = Pyramid(self._weights(layer, head, quantity))
        if pyramid.small:
            pyramid.finish()
        return pyramid

    def _weights(self, layer: int, head: int | None, quantity: Quantity) -> HeadWeights | MeanWeights | GivenWeights:
        recorded = self._scene.layers[layer]
        first = head_of(recorded, head or 0)
        if quantity == "rollout":
            return GivenWeights(rollout_of(self._scene, layer), first)
        if quantity.startswith("gradient"):
            row = int(quantity.partition(".")[2]) if "." in quantity else None
            gradients = self._gradients.get((layer, row), lambda: gradients_of(self._scene, layer, row))
            return GivenWeights(gradients.mean(0) if head is None else gradients[head], first)
        weights = [
            HeadWeights(head_of(recorded, each), norms(recorded, each) if quantity == "contribution" else None)
            for each in (range(recorded.heads) if head is None else (head,))
        ]
        return MeanWeights(weights) if head is None else weights[0]

    def _begin(self, pyramid: Pyramid) -> None:
        if not pyramid.exact:
            self.background.ask(pyramid)

    def _of(self, layer: int, head: int | None) -> list[Pyramid]:
        pyramids = (self._pyramids.find((layer, head, quantity)) for quantity in QUANTITIES)
        return [pyramid for pyramid in pyramids if pyramid is not None]


def _expect_level(pyramid: Pyramid, level: int) -> None:
    if level >= pyramid.levels:
        hint = f"This map has {pyramid.levels} levels."
        raise ConfigError("level", f"a level from 0 to {pyramid.levels - 1}", str(level), hint)


def _pooled(values: Tensor, level: int, statistic: Statistic) -> Tensor:
    """Pool a track to a level: the maximum for peak, the mean for the others."""
    block = 1 << level
    padding = -len(values) % block
    blocks = torch.nn.functional.pad(values.double(), (0, padding), value=torch.nan).view(-1, block)
    return blocks.nan_to_num(-torch.inf).amax(1) if statistic == "peak" else blocks.nanmean(1)
