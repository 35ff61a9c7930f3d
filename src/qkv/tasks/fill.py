"""A masked language model: predicts the masked words of a text, and makes vectors of texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, final, get_args

import torch
from torch import Tensor
from torch.nn import functional

from qkv.data.batches import collate_sources, device_of, in_batches
from qkv.data.tokenizer import Tokenizer
from qkv.errors import CheckpointError, ConfigError, DataError, Place, UnsupportedError, expect_name, setting
from qkv.hub.published import published_folder
from qkv.hub.sentence_folder import Sentences, read_sentences
from qkv.models.reader import MaskedLanguageModel
from qkv.tasks.embed.settings import PoolOfTokens
from qkv.tasks.length import expect_length
from qkv.tasks.python_values import expect_texts
from qkv.tasks.runs import Trained, rebuild_reader
from qkv.tasks.text_attention import read_scene
from qkv.values.checked import answering

if TYPE_CHECKING:
    from qkv.view.scene import Scene

_ROWS = 32
_MEAN = Sentences()


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
        sentences: how texts become vectors, or why they do not.

    Example:
        >>> import qkv  # doctest: +SKIP
        >>> qkv.load("bert-base-uncased").fill(["Paris is the [MASK] of France."])[0][0].token  # doctest: +SKIP
        'capital'
    """

    def __init__(
        self, model: MaskedLanguageModel, tokenizer: Tokenizer, sentences: Sentences | CheckpointError = _MEAN
    ) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self._sentences = sentences

    @classmethod
    def of(cls, trained: Trained, device: str | torch.device = "cpu") -> "MaskFiller":
        """Build the published model, see `Answerer.of`."""
        folder = published_folder(trained.folder)
        sentences: Sentences | CheckpointError
        try:
            sentences = _MEAN if folder is None else read_sentences(folder)
        except CheckpointError as error:  # of `embed` alone
            sentences = error
        return cls(rebuild_reader(trained, MaskedLanguageModel, device), trained.tokenizer, sentences)

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

    @torch.no_grad()
    def embed(
        self, texts: Sequence[str], *, pool: PoolOfTokens | None = None, unscaled: bool = False, first: int = 1
    ) -> Tensor:
        """Return a vector for each text.

        Args:
            texts: at least one token each.
            pool: what of the tokens' states, special tokens included: their "mean", or that of the "first" token; None
                for what modules.json of sentence-transformers says, or else the mean.
            unscaled: whether vectors keep their lengths; else they have length 1, and their dot product is the cosine.
            first: number of the first text, for messages.

        Returns:
            (B, M), float32, on the CPU.

        Raises:
            DataError: a text has no token, or is too long; the message gives its number.
            CheckpointError: the folder says that vectors are made in another way.
            ConfigError: there is no such pool.

        Source: Reimers and Gurevych 2019, "Sentence-BERT", section 3.

        Example:
            >>> import qkv  # doctest: +SKIP
            >>> vectors = qkv.load("all-MiniLM-L6-v2").embed(["A dog.", "A cat."])  # doctest: +SKIP
            >>> vectors @ vectors.T  # cosines  # doctest: +SKIP
        """
        chosen = None if pool is None else expect_name("pool", pool, get_args(PoolOfTokens))
        if isinstance(self._sentences, CheckpointError):
            raise self._sentences
        sentences = self._sentences
        longest = min(self.model.config.context, sentences.longest or self.model.config.context)
        rows = [self.tokenizer.encode(sentences.prompt + text) for text in expect_texts(texts, "texts")]
        for number, ids in enumerate(rows, start=first):
            if not ids:
                raise DataError(Place(None, number, "text"), "at least one token", "none", "Leave it out.")
            expect_length(Place(None, number, "text"), len(ids), longest, self.tokenizer)
        vectors = torch.empty(len(rows), self.model.config.width, device="cpu")
        by_length = sorted(range(len(rows)), key=lambda index: len(rows[index]))
        for batch in in_batches(by_length, _ROWS):
            tokens, lengths = collate_sources([rows[index] for index in batch], 0, device_of(self.model))
            states_BSM, _ = self.model.reader(tokens, lengths)
            pooled = states_BSM[:, 0] if (chosen or sentences.pool) == "first" else states_BSM.sum(1) / lengths[:, None]
            vectors[batch] = (pooled if unscaled else functional.normalize(pooled, dim=-1)).float().cpu()
        return vectors

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
