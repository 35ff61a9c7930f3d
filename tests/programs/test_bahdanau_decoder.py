"""Program 1: a decoder loop with additive attention, the keys projected once per sentence."""

import torch
from torch import nn

import qkv


class Decoder(nn.Module):
    def __init__(self, words: int = 11, width: int = 8, memory_width: int = 6, hidden: int = 5) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.cell = nn.GRUCell(width + memory_width, width)
        self.query_weight = nn.Parameter(torch.randn(hidden, width) * 0.3)
        self.key_weight = nn.Linear(memory_width, hidden, bias=False)
        self.vector = nn.Parameter(torch.randn(hidden))
        self.out = nn.Linear(width + memory_width, words)

    def forward(self, memory: torch.Tensor, lengths: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        keys = self.key_weight(memory)  # once per sentence
        score = qkv.scores.Additive(self.vector, self.query_weight)
        mask = qkv.masks.lengths(lengths)
        state = memory.new_zeros(len(memory), self.cell.hidden_size)
        logits = []
        for word in target.unbind(1):
            context = qkv.attention(state[:, None], keys, memory, score=score, mask=mask)[:, 0]
            state = self.cell(torch.cat([self.embed(word), context], -1), state)
            logits.append(self.out(torch.cat([state, context], -1)))
        return torch.stack(logits, 1)


def test_bahdanau_decoder() -> None:
    model = Decoder()
    memory, lengths = torch.randn(3, 9, 6), torch.tensor([9, 4, 7])
    target = torch.randint(0, 11, (3, 5))
    logits = model(memory, lengths, target)
    assert logits.shape == (3, 5, 11)

    changed = memory.clone()
    changed[1, 4:] = torch.nan  # padding can hold anything
    assert torch.equal(model(changed, lengths, target), logits)

    nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten()).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert model.vector.grad.abs().sum() > 0
