"""Where the weights of a head lie, as a few numbers; memory grows with the length of the text, not with its square."""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple, final

import torch
from torch import Tensor

from qkv.view.answers.head import Head, head_of
from qkv.view.answers.weights import HeadWeights
from qkv.view.scene import Scene

THRESHOLDS = {
    "diagonal": 0.4,
    "next": 0.4,
    "previous": 0.4,
    "local": 0.6,
    "first": 0.4,
    "separator": 0.4,
    "same": 0.4,
    "broad": 0.8,
}
"""From which value a label holds: a share of the weight, or for two sequences a correlation (diagonal, from 0.7); for
broad, a share of the largest entropy."""
CORRELATED = 0.7
_CELLS = 1 << 20
"""Weights that are computed at a time."""
_SEPARATOR = re.compile(r"[^\w\s]{1,3}|\[[A-Z]+\]|</?[\w|]+>|<\|[^|]*\|>")
"""Punctuation, and special tokens as tokenizers write them: [SEP], </s>, <eos>, <|endoftext|>."""


@final
class HeadShares(NamedTuple):
    """Where the weights of one head lie: means over its queries. None where a number has no meaning.

    Attributes:
        layer: the name of its layer.
        head: its number.
        diagonal: the share of the weight on the query's own position; between two sequences, the correlation of the
            positions of query and key under the weights.
        next, previous: the share on the position after the query, and before it; None between two sequences.
        local: the share on positions at most max(1, K/16), but no more than 8, from the query's; None between two
            sequences.
        first: the share on the first key.
        separator: the share on keys that are punctuation or special tokens.
        same: the share on other keys with the query's token.
        broad: the entropy of a row as a share of its maximum, the logarithm of the keys that it sees.
        entropy: the entropy of a row, in nats; None if weights can be negative.
        distance: the mean distance of key and query in positions; None between two sequences.
    """

    layer: str
    head: int
    diagonal: float | None
    next: float | None
    previous: float | None
    local: float | None
    first: float | None
    separator: float | None
    same: float | None
    broad: float | None
    entropy: float | None
    distance: float | None

    def labels(self, *, crossing: bool) -> dict[str, tuple[float, float]]:
        """Return the numbers that can be labels, each with the threshold from which it is one."""
        limits = THRESHOLDS | ({"diagonal": CORRELATED} if crossing else {})
        values = {name: getattr(self, name) for name in THRESHOLDS}
        return {name: (value, limits[name]) for name, value in values.items() if value is not None}


def is_separator(token: str) -> bool:
    """Return whether a token is punctuation or a special token.

    Example:
        >>> [is_separator(token) for token in (".", "[SEP]", "</s>", "<eos>", "dog", "##s", "don't")]
        [True, True, True, True, False, False, False]
    """
    return _SEPARATOR.fullmatch(token.strip("Ġ▁ ")) is not None


@torch.no_grad()
def shares_of(scene: Scene, layer: int, head: int, rows: Tensor | None = None) -> HeadShares:
    """Measure a head.

    Args:
        scene: the scene.
        layer, head: by number.
        rows: the queries to measure; None for all.
    """
    recorded, values = scene.layers[layer], head_of(scene.layers[layer], head)
    queries, keys = values.shape
    is_self = recorded.kind == "self"
    rows = torch.arange(queries, device="cpu") if rows is None else rows
    tokens = [scene.sequences[name] for name in (recorded.queries, recorded.keys)]
    kinds = _same_kinds(*tokens)
    separators = _separators(tokens[1])
    radius = min(8, max(1, keys // 16))
    columns = torch.arange(keys, dtype=torch.float64, device="cpu")
    sums = torch.stack([columns == 0, separators, torch.ones_like(columns), columns, columns.square()], 1)
    found: dict[str, list[Tensor]] = {}
    for at, weights, visible in _stripes(values, rows):
        of_rows = (weights @ sums).unbind(1)
        parts = dict(zip(("first", "separator", "total", "key", "key squared"), of_rows, strict=True))
        parts |= {"query": at.double(), "same": weights.where(kinds[0][at][:, None] == kinds[1], 0).sum(-1)}
        if is_self:
            near = {step: _beside(weights, at, step) for step in range(-radius, radius + 1)}
            parts |= {"diagonal": near[0], "next": near[1], "previous": near[-1][at > 0]}
            parts["local"] = torch.stack([*near.values()]).sum(0)
            parts["same"] = parts["same"] - parts["diagonal"]
            parts["distance"] = (weights * (columns - at[:, None]).abs_()).sum(-1)
        if values.non_negative:
            entropy = -torch.special.xlogy(weights, weights).sum(-1)
            parts["entropy"] = entropy
            parts["broad"] = (entropy / visible.double().log())[visible > 1]
        for name, part in parts.items():
            found.setdefault(name, []).append(part)
    joined = {name: torch.cat(part) for name, part in found.items()}
    means = {name: float(x.mean()) if len(x) else 0.0 for name, x in joined.items()}
    if joined and not is_self:
        means["diagonal"] = _correlation(joined)
    numbers = [means.get(name) if joined else 0.0 for name in HeadShares._fields[2:]]
    return HeadShares(recorded.name, head, *numbers)


def _beside(weights: Tensor, at: Tensor, step: int) -> Tensor:
    """Return the weight of each query (n, K) on the key that is some steps after it; 0 where there is none."""
    keys = at + step
    inside = (keys >= 0) & (keys < weights.shape[1])
    return weights.gather(1, keys.clamp(0, weights.shape[1] - 1)[:, None])[:, 0].where(inside, 0)


def _stripes(head: Head, rows: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield some rows at a time: their positions, their weights (n, K), float64, and how many keys each sees."""
    keys = head.shape[1]
    if not keys:
        return
    for at in rows.split(max(1, _CELLS // keys)):
        weights = HeadWeights(head).rows(at)(slice(None)).double().cpu()
        if head.mask is None:
            visible = torch.full((len(at),), keys, device="cpu")
        else:
            visible = torch.stack([head.visible(int(row)).sum() for row in at]).cpu()
        yield at, weights, visible


@lru_cache(maxsize=8)
def _separators(tokens: tuple[str, ...]) -> Tensor:
    """Return 1.0 for each token that is a separator, 0.0 for the others; for all heads of a scene."""
    return torch.tensor([is_separator(token) for token in tokens], dtype=torch.float64, device="cpu")


@lru_cache(maxsize=8)
def _same_kinds(queries: tuple[str, ...], keys: tuple[str, ...]) -> tuple[Tensor, Tensor]:
    """Return a number for each token, the same for the same token."""
    numbered = {token: number for number, token in enumerate(dict.fromkeys((*queries, *keys)))}
    queries_Q, keys_K = (
        torch.tensor([numbered[token] for token in tokens], dtype=torch.long, device="cpu")
        for tokens in (queries, keys)
    )
    return queries_Q, keys_K


def _correlation(sums: dict[str, Tensor]) -> float:
    """Return the correlation of the positions of query and key, each pair counted by its weight."""
    total = sums["total"].sum()
    query, key = (sums["query"] * sums["total"]).sum() / total, sums["key"].sum() / total
    covariance = (sums["query"] * sums["key"]).sum() / total - query * key
    of_query = (sums["query"].square() * sums["total"]).sum() / total - query.square()
    of_key = sums["key squared"].sum() / total - key.square()
    spread = (of_query * of_key).clamp(min=0).sqrt()
    return float(covariance / spread) if spread > 1e-9 else 0.0
