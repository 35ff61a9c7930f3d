"""A training row: the RNN translation model with `auto` attention and with the full tensor, step by step.

The full tensor runs twice: as the backend of the same model, so that only attention differs, and in the model written
with PyTorch's modules (`plain`).
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, final

import torch
from benchmarks.engine import plain
from benchmarks.engine.timing import Watch, ratio
from torch import Tensor, nn

from qkv.data.batches import Batch
from qkv.models.recurrent_translator import RecurrentTranslator
from qkv.nn.attention import Attention
from qkv.settings import build
from qkv.tasks.recipe import RecipeSettings
from qkv.tasks.translate.model import TranslationConfig
from qkv.tasks.translate.recipe import TranslationTask
from qkv.tasks.translate.settings import TranslateFiles, TranslateTokenizer
from qkv.training.optimizer import build_optimizer, clip_gradient, scale_gradient
from qkv.training.precision import computing
from qkv.training_settings import Settings

Precision = Literal["float32", "bfloat16"]

ASKED = 2.0
SETTINGS = Settings(steps=1, batch_tokens=2048, learning_rate=1e-3, label_smoothing=0.1)
MODEL = {"model": "gru", "score": "additive"}


@final
@dataclass(frozen=True)
class Training:
    """A row: Multi30k German to English with a GRU and additive attention.

    Attributes:
        name: the row's name for `--row`.
        precision: precision of the computation.
        pieces: kind of tokens: "bpe" gives some 15 per sentence, "char" some 65.
        data: the folder that contains `multi30k`.
        updates: number of timed steps; the first ones of each model are a warm-up.
    """

    name: str
    precision: Precision = "float32"
    pieces: Literal["bpe", "char"] = "bpe"
    data: Path | None = None
    updates: int = 15

    def measure(self, say: Callable[[str], None], watch: Watch) -> dict[str, Any]:
        """Train both models, alternating, on the same batches with the same seeds.

        Args:
            say: called with lines of progress.
            watch: the clock; steps are counted, not seconds.

        Returns:
            The record to store, as JSON values; without data, only the reason.
        """
        if self.data is None:
            return {"kind": "training", "skipped": "needs --data FOLDER, with multi30k/train.de and train.en"}
        task = _task(self.data / "multi30k", self.pieces)
        epoch = task.batches(tokens=SETTINGS.batch_tokens, seed=0, epoch=0)
        assert isinstance(epoch, list), "the text is in memory"
        # PyTorch's cells do not support mixed precision.
        names = (AUTO, REFERENCE) if self.precision == "bfloat16" else (AUTO, REFERENCE, PLAIN)
        sides = {name: _Side(task, name, self.precision, watch.clock) for name in names}
        for step, places in enumerate(islice(epoch, self.updates + WARMING)):
            for side in sides.values():
                side.update(step, places)
        return _record(sides, say)


WARMING = 3
AUTO, REFERENCE, PLAIN = "auto", "reference", "plain"


@final
class _Side:
    """One of the two models, its optimizer, and its measurements."""

    def __init__(
        self, task: TranslationTask, name: str, precision: Literal["float32", "bfloat16"], clock: Callable[[], float]
    ) -> None:
        torch.manual_seed(0)
        self._model = task.build().train()
        if name != PLAIN:
            _attend_with(self._model, name)
        self._plain = name == PLAIN
        self._task = task
        self._optimizer = build_optimizer(self._model, SETTINGS)
        self._precision, self._clock = precision, clock
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self.tokens: list[int] = []

    def update(self, step: int, places: Sequence[int]) -> None:
        """Run one training step; the seed determines dropout."""
        torch.manual_seed(step)
        parameters = list(self._model.parameters())
        batch = self._task.collate(places, torch.device("cpu"))
        start = self._clock()
        self._optimizer.zero_grad(set_to_none=True)
        with computing(self._precision, torch.device("cpu")):
            loss, count = self._loss(batch)
        loss.backward()
        scale_gradient(parameters, 1 / count)
        clip_gradient(parameters, SETTINGS.clip)
        self._optimizer.step()
        self.seconds.append(self._clock() - start)
        self.losses.append(float(loss.detach()) / count)
        self.tokens.append(count)

    def _loss(self, batch: Batch) -> tuple[Tensor, int]:
        if not self._plain:
            return self._task.objective(self._model, batch)
        assert isinstance(self._model, RecurrentTranslator)
        return plain.loss_of(self._model, batch, self._task.tokenizer.pad, SETTINGS.label_smoothing)


def _attend_with(model: nn.Module, backend: str) -> None:
    for module in model.modules():
        if isinstance(module, Attention):
            module.backend = backend


def _task(folder: Path, pieces: Literal["bpe", "char"]) -> TranslationTask:
    files = TranslateFiles(
        source=folder / "train.de",
        target=folder / "train.en",
        valid_source=folder / "val.de",
        valid_target=folder / "val.en",
    )
    words = TranslateTokenizer(tokenizer=pieces)
    config: TranslationConfig = build(TranslationConfig, MODEL, "model")
    return TranslationTask.read(RecipeSettings(files, words, config, SETTINGS), None)


def _record(sides: Mapping[str, _Side], say: Callable[[str], None]) -> dict[str, Any]:
    ours = sides[AUTO]
    record: dict[str, Any] = {
        "kind": "training",
        "updates": len(ours.seconds) - WARMING,
        "tokens_per_second": {name: _speed(side) for name, side in sides.items()},
        "faster": {name: _faster(side, ours) for name, side in sides.items() if side is not ours},
        "asked": ASKED,
        "losses": {name: _rounded(side.losses) for name, side in sides.items()},
        "losses_apart": {name: _apart(side, ours) for name, side in sides.items() if side is not ours},
    }
    say(f"  tokens/s {record['tokens_per_second']}")
    for name, faster in record["faster"].items():
        say(f"  {faster['middle']:.2f} times {name} [{faster['low']:.2f}, {faster['high']:.2f}]")
    say(f"  losses at most {record['losses_apart']} apart, from {ours.losses[0]:.3f} to {ours.losses[-1]:.3f}")
    return record


def _faster(theirs: _Side, ours: _Side) -> dict[str, float]:
    found = ratio(theirs.seconds[WARMING:], ours.seconds[WARMING:])
    return {key: round(x, 3) for key, x in asdict(found).items()}


def _apart(theirs: _Side, ours: _Side) -> float:
    return float(f"{max(abs(a - b) / b for a, b in zip(ours.losses, theirs.losses, strict=True)):.2e}")


def _speed(side: _Side) -> float:
    speeds = [count / seconds for count, seconds in zip(side.tokens, side.seconds, strict=True)][WARMING:]
    return round(statistics.median(speeds), 1)


def _rounded(losses: Sequence[float]) -> list[float]:
    return [round(loss, 5) for loss in losses]
