"""Training a language model: the task in the form that `qkv.training` expects."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from torch import Tensor

from qkv.data.batches import NO_LABEL, device_of
from qkv.metrics.figure import Figure
from qkv.models.language_model import LanguageModel
from qkv.tasks.corpora.text import WindowBatches
from qkv.tasks.generate.data import TrainingText
from qkv.tasks.generate.scoring import TextModel, judge
from qkv.tasks.generate.settings import GenerateFiles
from qkv.tasks.recipe import RecipeSettings
from qkv.training.loss import label_smoothed_loss, layer_loss
from qkv.values.plain_modules import is_watched


@final
@dataclass(frozen=True)
class LanguageTask:
    """A text, a model and its evaluation.

    Args:
        model: the model to train.
        text: what is trained and validated on.
        settings: of the training.
    """

    model: TextModel
    text: TrainingText
    settings: RecipeSettings[GenerateFiles, Any]

    @property
    def unit(self) -> str:
        """The unit that the objective counts."""
        return "tokens"

    def batches(self, *, tokens: int, seed: int, epoch: int) -> Sequence[Sequence[int]] | WindowBatches:
        """Batch windows of the context length."""
        context = self.model.config.context
        rows = self.settings.training.batch_size or max(1, tokens // context)
        return self.text.train.batches(context, rows, self.settings.data.order, seed, epoch)

    def collate(self, indices: Sequence[int]) -> Tensor:
        """Stack windows with the token before each, (B, context + 1), on the model's device."""
        return self.text.train.take(indices, self.model.config.context).to(device_of(self.model))

    def objective(self, batch: Tensor) -> tuple[Tensor, int]:
        """Compute the smoothed cross entropy of each next token: windows have no padding."""
        count, smoothing = batch[:, 1:].numel(), self.settings.training.label_smoothing
        capped = isinstance(self.model, LanguageModel) and self.model.parts.output_softcap is not None
        if capped or is_watched(self.model):
            # The bound of the logits comes between the output layer and the loss, and so do hooks of the model.
            return label_smoothed_loss(self.model(batch[:, :-1]), batch[:, 1:], NO_LABEL, smoothing, count)
        states = self.model.advance(batch[:, :-1])[0]
        return layer_loss(states, self.model.output, batch[:, 1:], NO_LABEL, smoothing, count)

    def lines(self, indices: Sequence[int]) -> list[int]:
        """Return the line numbers where windows begin."""
        return self.text.train.lines(indices)

    def validate(self) -> list[Figure]:
        """Compute loss, perplexity and bits per character of the validation text."""
        return judge(self.model, self.text.valid)
