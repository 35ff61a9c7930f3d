"""A small real task: learn to copy and shift tokens, with an embedding, a linear layer, dropout and tied output."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

import torch
from torch import Tensor, nn

from qkv.metrics.figure import Figure
from qkv.training.events import Outcome
from qkv.training.loss import label_smoothed_loss
from qkv.training.trainer import train
from qkv.training_settings import Settings

VOCABULARY = 12
SETTINGS = Settings(steps=20, batch_tokens=24, warmup=4, validate_every=6, log_every=5, keep=2, learning_rate=0.02)
CONFIG = {"task": "shift", "model": {"width": 8}}


class Shift(nn.Module):
    """Tied on purpose: two names for one tensor must survive a checkpoint."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.hidden = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(0.2)
        self.output = nn.Linear(width, VOCABULARY)
        self.output.weight = self.embedding.weight
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, source: Tensor) -> Tensor:
        if self.training:
            self.seen += source.numel()
        return self.output(self.dropout(self.norm(torch.tanh(self.hidden(self.embedding(source))))))


class ShiftTask:
    """Implements the whole Protocol of `qkv.training`, without shortcuts for tests."""

    unit = "tokens"

    def __init__(self, model: Shift, examples: int = 40, seed: int = 1) -> None:
        random = Random(seed)
        self.model = model
        self.examples = [
            torch.tensor([random.randrange(1, VOCABULARY) for _ in range(random.randrange(2, 7))])
            for _ in range(examples)
        ]

    def batches(self, *, tokens: int, seed: int, epoch: int) -> list[list[int]]:
        order = list(range(len(self.examples)))
        Random(f"{seed}:{epoch}").shuffle(order)
        size = max(1, tokens // 6)
        return [order[start : start + size] for start in range(0, len(order), size)]

    def collate(self, places: Sequence[int], device: torch.device) -> Tensor:
        return nn.utils.rnn.pad_sequence([self.examples[place] for place in places], batch_first=True)

    def objective(self, model: nn.Module, batch: Tensor) -> tuple[Tensor, int]:
        target = torch.where(batch > 0, (batch + 1) % (VOCABULARY - 1) + 1, 0)
        return label_smoothed_loss(model(batch), target, padding=0, smoothing=0.1)

    def validate(self, model: nn.Module) -> list[Figure]:
        loss, count = self.objective(model, self.collate(range(8), torch.device("cpu")))
        torch.rand(3)
        return [Figure("loss", loss.item() / count, "mean of 8", higher_is_better=False)]

    def lines(self, places: Sequence[int]) -> list[int]:
        return [place + 1 for place in places]


class Quiet:
    """A stream that stores what was written; not a terminal."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return False


def fresh() -> ShiftTask:
    torch.manual_seed(3)
    return ShiftTask(Shift())


def run_training(run: Path, settings: Settings = SETTINGS, task: ShiftTask | None = None, **options: object) -> Outcome:
    task = task or fresh()
    options = {"config": CONFIG, "stream": Quiet()} | options
    return train(task, task.model, settings, run=run, tokenizer='{"kind": "none"}', **options)
