"""Rows of the heads of a scene, computed once for all answers about their queries."""

from typing import NamedTuple, final

import torch
from torch import Tensor

from qkv.biases import Bias
from qkv.scores.base import Score
from qkv.scores.free import Learned
from qkv.view.answers.byte_lru import ByteLRU
from qkv.view.answers.head import AttendedRow, Head, head_of
from qkv.view.scene import Scene

_BYTES = 16 << 20
"""Maximum bytes of the cached rows of one kind."""
_CHUNK = 4_096
"""How many keys are scored at a time."""


class ScoredRow(NamedTuple):
    """The scores of one query.

    Attributes:
        scores: with biases, and those of masked keys too, (K), float64.
        biases: (K), float64; None for none.
        visible: the keys that the query may see, bool (K).
        threshold: τ from the row state, if the normalizer has one.
    """

    scores: Tensor
    biases: Tensor | None
    visible: Tensor
    threshold: float


@final
class SceneRows:
    """The rows of all heads of a scene; the most recent ones are cached.

    Steps, cells and graphs of one query need the same rows: all heads of its layer, and each key of its head.

    Args:
        scene: the scene, whose numbers stay as they are.

    Example:
        >>> from qkv.view.scene import Layer
        >>> layer = Layer("one", "self", "text", "text", *torch.ones(3, 1, 2, 8))
        >>> SceneRows(Scene("two words", {"text": ("a", "dog")}, (layer,))).attended(0, 0, 1).weights
        tensor([0.5000, 0.5000])
    """

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self._heads: dict[tuple[int, int], Head] = {}
        self._attended = ByteLRU[AttendedRow](_BYTES, lambda row: row.output.nbytes + row.weights.nbytes)
        self._scored = ByteLRU[ScoredRow](_BYTES, lambda row: 17 * len(row.scores))

    def head(self, layer: int, head: int) -> Head:
        """Return a head as attention computes it."""
        if (layer, head) not in self._heads:
            self._heads[layer, head] = head_of(self.scene.layers[layer], head).in_log_space()
        return self._heads[layer, head]

    def attended(self, layer: int, head: int, query: int) -> AttendedRow:
        """Return the output of one query and its weights."""
        return self._attended.get((layer, head, query), lambda: self.head(layer, head).attend(query))

    def scored(self, layer: int, head: int, query: int) -> ScoredRow:
        """Return the scores of one query."""
        return self._scored.get((layer, head, query), lambda: _scored(self.head(layer, head), query))


def _scored(head: Head, query: int) -> ScoredRow:
    biases = _biases(head, query)
    s_K = _all_scores(head.score, wide(head.score, head.query[query]), wide(head.score, head.key)).detach().double()
    s_K = s_K if biases is None else s_K + biases
    return ScoredRow(s_K, biases, head.visible(query), _threshold(head, query))


def _all_scores(score: Score, query: Tensor, keys: Tensor) -> Tensor:
    """Compute the score of one query with every key, (K), a few keys at a time."""
    parts = [score(query[None], keys[at : at + _CHUNK])[0] for at in range(0, len(keys), _CHUNK)]
    return torch.cat(parts) if parts else query.new_zeros(0)


def wide(score: Score, x: Tensor) -> Tensor:
    """Compute in float64, except for user-defined functions, which get their own dtype."""
    return x if isinstance(score, Learned) else x.double()


def _biases(head: Head, query: int) -> Tensor | None:
    bias = head.options(torch.tensor([query], device="cpu"))["bias"]
    if bias is None:
        return None
    columns = torch.arange(head.shape[1], device="cpu")
    tile: Tensor = (
        bias.tile(torch.zeros(1, 1, dtype=torch.long, device="cpu"), columns) if isinstance(bias, Bias) else bias
    )
    return tile.detach().double().expand(1, len(columns))[0]


def _threshold(head: Head, query: int) -> float:
    if head.kind not in ("sparsemax", "entmax"):
        return 0.0
    return float(head.map(torch.tensor([query], device="cpu")).state.value[0])
