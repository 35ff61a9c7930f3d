"""A masked language model: predicts the masked words of a text."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, final

import torch
from torch import Tensor

from qkv.data.batches import collate_sources, device_of, in_batches
from qkv.data.tokenizer import Tokenizer
from qkv.errors import ConfigError, DataError, UnsupportedError, setting
from qkv.models.reader import MaskedLanguageModel
from qkv.tasks.python_values import expect_texts
from qkv.tasks.runs import Trained, expect_task, load_trained, rebuild_reader
from qkv.tasks.text_attention import read_scene
from qkv.values.checked import answering

if TYPE_CHECKING:
    from qkv.view.scene import Scene

_ROWS = 32


@final
@dataclass(frozen=True)
class Filled:
    """A likely token for a masked position.

    Args:
        token: its readable name.
        number: its id.
        probability: of this token at this position.
        text: the text with the mask replaced by the token; other masks stay.
    """

    token: str
    number: int
    probability: float
    text: str


@final
@answering
class MaskFiller:
    """A masked language model with its tokenizer, ready to use.

    Args:
        model: the network.
        tokenizer: text to tokens and back.

    Example:
        >>> import qkv  # doctest: +SKIP
        >>> qkv.load("bert-base-uncased").fill(["Paris is the [MASK] of France."])[0][0].token  # doctest: +SKIP
        'capital'
    """

    def __init__(self, model: MaskedLanguageModel, tokenizer: Tokenizer) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer

    @classmethod
    def load(cls, run: str | Path, device: str | torch.device = "cpu") -> "MaskFiller":
        """Load the folder of a published model.

        Raises:
            CheckpointError: it does not hold what it should, or a model of another task.
        """
        return cls.of(load_trained(run), device)

    @classmethod
    def of(cls, trained: Trained, device: str | torch.device = "cpu") -> "MaskFiller":
        """Build the published model; errors as for `load`."""
        expect_task(trained, "fill", "a masked language model")
        return cls(rebuild_reader(trained, MaskedLanguageModel, device), trained.tokenizer)

    @torch.no_grad()
    def fill(self, texts: Sequence[str], *, best: int = 5) -> list[list[Filled]]:
        """Predict the masked tokens of each text.

        Args:
            texts: each with one mask, written as the tokenizer does: "[MASK]" or "<mask>".
            best: number of predictions.

        Returns:
            For each text its most likely tokens, the likeliest first.

        Raises:
            DataError: a text has no mask or several, or is too long.
            ConfigError: the model has no output layer, or `best` is below 1.
        """
        if not self.model.config.masked_head:
            hint = "Its states can be recorded; masks are filled by a folder with a masked language model."
            raise ConfigError("fill", "a model with an output layer", "one without", hint)
        if not 1 <= best <= self.model.config.size:
            raise ConfigError("best", f"1 to {self.model.config.size}", f"{best}", "5 suit most uses.")
        sources = [self._encode(text, number) for number, text in enumerate(expect_texts(texts, "texts"), start=1)]
        filled: list[list[Filled]] = []
        for rows in in_batches(sources, _ROWS):
            tokens, lengths = collate_sources(rows, 0, device_of(self.model))
            scores = self.model(tokens, lengths)
            masked = torch.tensor([ids.index(self._mask) for ids in rows], device=scores.device)
            probabilities = scores[torch.arange(len(rows), device=scores.device), masked].float().softmax(-1)
            filled += [self._filled(ids, row, best) for ids, row in zip(rows, probabilities, strict=True)]
        return filled

    def score_files(self, files: Any) -> NoReturn:
        """Refuse: there is no training of masked language models here whose figures could be computed.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("run", "a model of a task that `qkv train` has", "one that fills masks", "Use fill().")

    def export_facts(self, to: str) -> dict[str, Any]:
        """Return the task, or refuse a program other than transformers.

        Raises:
            UnsupportedError: another program is asked for.
        """
        if to != "transformers":
            hint = "Use " + setting("to", "transformers") + "."
            raise UnsupportedError(setting("to"), "a model that was trained here", "one that fills masks", hint)
        return {"task": "fill"}

    def scene(self, text: str, tokens: int | None = None) -> "Scene":
        """Run the model on a text, and return what every layer attends to, for the viewer.

        Args:
            text: one text.
            tokens: number of tokens to read; None for all.

        Raises:
            DataError: the text has no tokens.
            ConfigError: the model has no attention.
        """
        return read_scene(self, self.tokenizer.encode(text)[:tokens], text)

    @property
    def _mask(self) -> int:
        imported = self.tokenizer.imported
        number = None if imported is None else imported.mask
        if number is None:
            hint = "Its tokenizer.json names neither."
            raise ConfigError("tokenizer", "a mask, [MASK] or <mask>", "none", hint)
        return number

    def _encode(self, text: str, number: int) -> list[int]:
        ids = self.tokenizer.encode(text)
        if len(ids) > self.model.config.context:
            got, hint = f"{len(ids)}", "Shorten it."
            expected = f"at most {self.model.config.context} tokens"
            raise DataError(f"text {number}", expected, got, hint)
        if ids.count(self._mask) != 1:
            hint = 'For example: "Paris is the [MASK] of France."'
            raise DataError(f"text {number}", "one mask", f"{ids.count(self._mask)}", hint)
        return ids

    def _filled(self, ids: list[int], probabilities: Tensor, best: int) -> list[Filled]:
        index = ids.index(self._mask)
        shares, numbers = probabilities.topk(best)
        return [
            Filled(
                self.tokenizer.pieces([number])[0],
                number,
                share,
                self.tokenizer.decode([*ids[:index], number, *ids[index + 1 :]]),
            )
            for share, number in zip(shares.tolist(), numbers.tolist(), strict=True)
        ]
