"""Scripted models with known probabilities, and batches for them."""

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

from qkv.linalg.session import DecodingSession

BOS, EOS, SIZE = 1, 2, 11


@dataclass(frozen=True)
class Script:
    """The next token's scores are a fixed function of the source, the last token and the step."""

    seed: int
    seen: list[int]

    def start(self, source: Tensor, lengths: Tensor, session: DecodingSession | None = None) -> tuple[Tensor, int]:
        inside = torch.arange(source.shape[1]) < lengths[:, None]
        return torch.where(inside, source, 0).sum(dim=1), 0

    def step(self, tokens: Tensor, state: tuple[Tensor, int]) -> tuple[Tensor, tuple[Tensor, int]]:
        key, time = state
        self.seen.append(len(tokens))
        rows = [self._row(int(total), int(token), time) for total, token in zip(key, tokens, strict=True)]
        return torch.stack(rows), (key, time + 1)

    def select(self, state: tuple[Tensor, int], rows: Tensor) -> tuple[Tensor, int]:
        return state[0][rows], state[1]

    def _row(self, total: int, token: int, time: int) -> Tensor:
        draw = torch.Generator().manual_seed(self.seed + 1000 * total + 17 * token + time)
        return torch.randn(SIZE, generator=draw, dtype=torch.float64) * 2


sources = st.lists(st.lists(st.integers(3, SIZE - 1), min_size=1, max_size=4), min_size=1, max_size=6)


def batch(rows: list[list[int]], fill: int = 0) -> tuple[Tensor, Tensor]:
    width = max(map(len, rows)) + 2
    return (
        torch.tensor([row + [fill] * (width - len(row)) for row in rows]),
        torch.tensor([len(row) for row in rows]),
    )
