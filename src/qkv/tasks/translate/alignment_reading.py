"""Which attention weights of a translation model align a target word."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final, get_args

import torch
from torch import Tensor, nn

from qkv.errors import ConfigError, expect_name, setting
from qkv.tasks.translate.model import TranslationModel
from qkv.values.checked import checked

When = Literal["at", "after"]


@checked
@final
@dataclass(frozen=True)
class AlignmentReading:
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
    when: When = "at"

    def __post_init__(self) -> None:
        expect_name(setting("when"), self.when, get_args(When))

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
        raise ConfigError("run", "a model with attention", f"one trained with {setting('score', 'none')}", hint)
    modules: nn.Module = model
    names = [name for name, _ in modules.named_modules() if name.endswith("cross_attention.attention")]
    return names if last in names else [*names, last]


def default_reading(layers: Sequence[str]) -> AlignmentReading:
    """Return the default reading: for a Transformer, the layer before the last, after the step.

    Source: Garg et al. 2019, "Jointly Learning to Align and Translate with Transformer Models", section 4.

    Example:
        >>> str(default_reading(["attention"]))
        'attention, mean of heads, at the step'
    """
    return AlignmentReading(layers[0]) if len(layers) == 1 else AlignmentReading(layers[-2], when="after")
