"""Training a translation model: the task in the form that `qkv.training` expects."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

from torch import Tensor

from qkv.data.batches import NO_LABEL, Batch, Example, collate, device_of
from qkv.data.corpus import Pair
from qkv.metrics.figure import Figure
from qkv.metrics.ibm_model_1 import ExpectedLinks
from qkv.metrics.translation import WMT
from qkv.models.copying import CopyingTranslator
from qkv.models.monotonic import MonotonicTranslator
from qkv.tasks.corpora.pairs import PairBatches
from qkv.tasks.length import cut_share
from qkv.tasks.recipe import RecipeSettings
from qkv.tasks.translate.aligner import Aligner
from qkv.tasks.translate.data import Parallel
from qkv.tasks.translate.limits import LengthLimit
from qkv.tasks.translate.model import TranslationConfig, TranslationModel
from qkv.tasks.translate.predict import Translator
from qkv.tasks.translate.scoring import judge
from qkv.tasks.translate.settings import TranslateFiles
from qkv.training.loss import label_smoothed_loss, layer_loss
from qkv.values.plain_modules import is_watched

TranslationSettings = RecipeSettings[TranslateFiles, TranslationConfig]
_VALIDATION_TOKENS = 8192
_ALIGNED_CELLS = 500_000
"""Token pairs of the validation pairs on which weights are chosen for aligning: about 1,000 sentences of 20 words."""


@final
@dataclass(frozen=True)
class TranslationTask:
    """Parallel text, a model and its evaluation.

    Args:
        model: the model to train.
        text: the pairs; those of a model that writes right to left hold targets in that order.
        settings: of the training.
    """

    model: TranslationModel
    text: Parallel
    settings: TranslationSettings

    @property
    def unit(self) -> str:
        """The unit that the objective counts."""
        return "tokens"

    def batches(self, *, tokens: int, seed: int, epoch: int) -> Sequence[Sequence[int]] | PairBatches:
        """Batch examples of about equal length."""
        return self.text.train.batches(tokens, seed, epoch, self.settings.training.batch_size)

    def collate(self, indices: Sequence[int]) -> Batch:
        """Stack examples, on the model's device."""
        return self._stack(self.text.train.take(indices))

    def objective(self, batch: Batch) -> tuple[Tensor, int]:
        """Compute the smoothed cross entropy of each next target token."""
        return self._loss(batch, self.settings.training.label_smoothing)

    def lines(self, indices: Sequence[int]) -> list[int]:
        """Return the line numbers of examples in the user's files."""
        return [example.index for example in self.text.train.take(indices)]

    def validate(self) -> list[Figure]:
        """Compute the metrics of `judge`, the loss, the part that was cut, and how well attention aligns words."""
        translations = self.translator().translate_fully([pair.source for pair in self.text.valid])
        written = [translation.text for translation in translations]
        judged = judge(written, self.text.valid, self.settings.data.bleu_tokenize or WMT)
        cut = cut_share(translation.finished for translation in translations)
        return [*judged, self._validation_loss(), *cut, *self._alignment_agreement()]

    def translator(self) -> Translator:
        """Return the current model as a translator."""
        longest, direction = self.settings.data.longest, (self.text.backward,)
        return Translator(self.model, self.text.tokenizer, longest, right_to_left=direction, limit=self.limit)

    @cached_property
    def limit(self) -> LengthLimit:
        """How long a validation's translation may become."""
        return self.text.limit

    def _alignment_agreement(self) -> list[Figure]:
        """Return the agreement of the best reading, which its signature names; none if there is nothing to align."""
        pairs, expected = self._alignable
        if not pairs or self.text.backward or self.model.alignment_layer is None:
            return []
        return [Aligner(self.translator()).choose_by_agreement(pairs, expected)[1]]

    @cached_property
    def _alignable(self) -> tuple[list[Pair], ExpectedLinks]:
        """The first validation pairs of several words on both sides, and the links that the words alone suggest."""
        pairs, cells = list[Pair](), 0
        for pair, example in zip(self.text.valid, self.text.valid_examples.examples, strict=True):
            source, target = len(pair.source.split()), len(pair.target.split())
            if min(source, target) > 1 and example.source and example.target:
                pairs.append(pair)
                cells += len(example.source) * len(example.target)
            if cells > _ALIGNED_CELLS:
                break
        return pairs, ExpectedLinks([(pair.source.split(), pair.target.split()) for pair in pairs])

    def _validation_loss(self) -> Figure:
        examples = self.text.valid_examples
        total, count = 0.0, 0
        for indices in examples.batches(max(_VALIDATION_TOKENS, 2 * self.settings.data.longest), 0, 0):
            loss, tokens = self._loss(self._stack(examples.take(indices)), 0.0)
            total, count = total + float(loss), count + tokens
        return Figure("loss", total / count, "nats per target token", higher_is_better=False)

    def _stack(self, examples: Sequence[Example]) -> Batch:
        tokenizer = self.text.tokenizer
        return collate(examples, tokenizer.pad, tokenizer.bos, tokenizer.eos, device_of(self.model))

    def _loss(self, batch: Batch, smoothing: float) -> tuple[Tensor, int]:
        inputs = (batch.source, batch.source_lengths, batch.target[:, :-1])
        labels = batch.labels
        if isinstance(self.model, CopyingTranslator | MonotonicTranslator) or is_watched(self.model):
            return label_smoothed_loss(self.model(*inputs), labels, NO_LABEL, smoothing, batch.count)
        return layer_loss(self.model.states(*inputs), self.model.output, labels, NO_LABEL, smoothing, batch.count)
