"""Which attention weights of a translation model align a target word."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast, final

import torch
from torch import Tensor, nn

from qkv.checkpoint.manifest import ALTERED, FIGURES
from qkv.errors import CheckpointError, ConfigError, setting
from qkv.metrics.figure import Figure
from qkv.tasks.translate.model import TranslationModel
from qkv.tasks.translate.settings import ReadingSettings, When
from qkv.values.checked import checked

AGREEMENT = "alignment_agreement"
"""The figure of a checkpoint whose signature is the reading that training chose for its weights."""


@checked
@final
@dataclass(frozen=True)
class AlignmentReading(ReadingSettings):
    """The weights that align a target word.

    Args:
        layer: path of the attention in the model.
        head: head index, from 0; None for the mean over all.
        when: "at" the step that predicts the word, or "after" it, at the step whose input it is: there, a Transformer
            often attends to the word itself rather than the next one.

    Source: "after": Chen et al. 2020, "Accurate Word Alignment Induction from Neural Machine Translation", section 3.1.
    """

    layer: str
    head: int | None = None
    when: When = ReadingSettings.usual_when

    def of(self, weights: Tensor) -> Tensor:
        """Read the weights of one sentence.

        Args:
            weights: of the layer, (T + 1, S) or (H, T + 1, S): one row per target token and one for the end token.

        Returns:
            (T + 1, S); for the last row, "after" is read "at" its step.

        Raises:
            ConfigError: the head does not exist.
        """
        weights_of_head = self.pick(weights if weights.ndim == 3 else weights[None])
        return weights_of_head if self.when == "at" else torch.cat([weights_of_head[1:], weights_of_head[-1:]])

    def pick(self, heads: Tensor) -> Tensor:
        """Select the head, or the mean over all: (H, ..., S) to (..., S).

        Raises:
            ConfigError: the head does not exist.
        """
        if self.head is None:
            return heads.mean(0)
        if not 0 <= self.head < heads.shape[0]:
            hint = "Omit it for the mean over all heads."
            raise ConfigError(setting("head"), f"from 0 to {heads.shape[0] - 1}", f"{self.head}", hint)
        return heads[self.head]

    def replaced(self, asked: ReadingSettings) -> "AlignmentReading":
        """Return this reading with what was asked for; in a layer that was, the mean of heads at the step by default.

        Example:
            >>> str(AlignmentReading("decoder.1", 2).replaced(ReadingSettings(when="after")))
            'decoder.1, head 2, after the step'
        """
        usual = self if asked.layer is None else AlignmentReading(asked.layer)
        head = usual.head if asked.head is None else asked.head
        return AlignmentReading(usual.layer, head, asked.when or usual.when)

    @property
    def signature(self) -> str:
        """The reading as part of a figure's signature.

        Example:
            >>> AlignmentReading("decoder.1", 2).signature
            'layer:decoder.1|head:2|when:at'
        """
        return f"layer:{self.layer}|head:{'mean' if self.head is None else self.head}|when:{self.when}"

    def __str__(self) -> str:
        head = "mean of heads" if self.head is None else f"head {self.head}"
        return f"{self.layer}, {head}, {self.when} the step"


def attention_layers(model: TranslationModel) -> list[str]:
    """Return the cross-attention layers, in the order of the model.

    Raises:
        ConfigError: the model has no attention.
    """
    last = model.alignment_layer
    if last is None:
        hint = "Train with a score."
        raise ConfigError("run", "a model with attention", "one trained with " + setting("score", "none"), hint)
    modules: nn.Module = model
    names = [name for name, _ in modules.named_modules() if name.endswith("cross_attention.attention")]
    return names if last in names else [*names, last]


def stored_reading(figures: Iterable[Figure]) -> AlignmentReading | None:
    """Return the reading that training chose, from the figures of a checkpoint; None if it chose none.

    Raises:
        CheckpointError: the figure names no reading.

    Example:
        >>> str(stored_reading([Figure(AGREEMENT, 91.5, "layer:decoder.0|head:mean|when:at|links:ibm1")]))
        'decoder.0, mean of heads, at the step'
    """
    for figure in figures:
        if figure.name == AGREEMENT:
            parts = dict(part.partition(":")[::2] for part in figure.signature.split("|"))
            try:
                head = None if parts["head"] == "mean" else int(parts["head"])
                return AlignmentReading(parts["layer"], head, cast("When", parts["when"]))
            except (KeyError, ValueError, ConfigError) as error:
                expected = f"{AGREEMENT} of a layer, a head and a step"
                raise CheckpointError(FIGURES, expected, figure.signature[:160], ALTERED) from error
    return None


def default_reading(model: TranslationModel) -> AlignmentReading:
    """Return the reading of a model for which training chose none: its last layer at the step, the mean of heads.

    Raises:
        ConfigError: the model has no attention.

    Source: the table of `docs/how_to/translate.md`, which `python -m results.readings` measures.
    """
    return AlignmentReading(attention_layers(model)[-1])
