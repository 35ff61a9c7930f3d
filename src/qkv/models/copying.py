"""A translator that can copy words from its source, including out-of-vocabulary words."""

from typing import NamedTuple, final

import torch
from torch import Tensor

from qkv.errors import ConfigError, ShapeError
from qkv.linalg.session import DecodingSession
from qkv.models.predictor import Predictor
from qkv.models.recurrent_translator import RecurrentState, RecurrentTranslator
from qkv.models.translator import TransformerState, TransformerTranslator
from qkv.nn.copy import Copyable, CopyHead


class CopyingState(NamedTuple):
    """The decoder's state between two steps.

    Attributes:
        inner: the translator's state.
        source: the words that can be copied.
    """

    inner: RecurrentState | TransformerState
    source: Copyable


@final
class CopyingTranslator(Predictor[CopyingState]):
    """A translator that predicts from its vocabulary and the words of the source.

    Ids from the vocabulary size N on are out-of-vocabulary words: N + i is the i-th one in the row's source. The
    translator reads them as unknown, in source and target; only copying distinguishes them.

    Args:
        inner: the translator; its `config.copy` selects how copies are combined with the vocabulary. Its hooks see the
            logits that it predicts, before copies are combined with them.
        unknown: the id of the unknown token.

    Raises:
        ConfigError: the translator is not configured to copy.

    Source: Gu et al. 2016, section 3; See et al. 2017, section 2.2.

    Example:
        >>> from qkv.models.configs.translator import RecurrentConfig
        >>> config = RecurrentConfig(size=20, embedding=8, hidden=8, attention=8, copy="mixture")
        >>> model = CopyingTranslator(RecurrentTranslator(config), unknown=3)
        >>> source = torch.tensor([[5, 20, 21], [20, 6, 0]])  # two unknown words in the first, one in the second
        >>> model(source, torch.tensor([3, 2]), torch.tensor([[1, 20], [1, 6]])).shape
        torch.Size([2, 2, 22])
    """

    def __init__(self, inner: RecurrentTranslator | TransformerTranslator, unknown: int) -> None:
        super().__init__()
        config = inner.config
        if config.copy == "none":
            hint = 'Choose "mixture" or "joint".'
            raise ConfigError("copy", "a way to copy", '"none"', hint)
        self.config, self.unknown = config, unknown
        self.inner = inner
        states, memory = inner.widths
        self.copy = CopyHead(config.size, states, memory, states, config.copy)

    @property
    def alignment_layer(self) -> str:
        """The name of the attention that aligns target and source: the copying one."""
        return "copy.attention"

    def forward(self, source: Tensor, source_lengths: Tensor, target: Tensor) -> Tensor:
        """Predict each next target token, given the ones before it.

        Args:
            source: ids (B, S), int64; from N on for out-of-vocabulary words.
            source_lengths: (B,), int64.
            target: ids (B, T): the begin token first.

        Returns:
            Log-probabilities (B, T, N + X), with X the largest number of out-of-vocabulary words in a source.

        Raises:
            ShapeError: a shape, dtype or id is wrong.
        """
        state = self.start(source, source_lengths)
        if target.ndim != 2 or target.dtype != torch.int64 or target.shape[0] != source.shape[0]:
            expected, got = f"int64 ({source.shape[0]}, T)", f"{target.dtype} {tuple(target.shape)}"
            raise ShapeError("target", expected, got, "Each row starts with the begin token.")
        return self._predict(target, state)[0]

    def start(self, source: Tensor, lengths: Tensor, session: DecodingSession | None = None) -> CopyingState:
        """Encode the source; the session serves the translator.

        Raises:
            ShapeError: a shape or dtype is wrong.
        """
        inner, memory = self.inner.read(self._without_copied(source), lengths, session)
        ids = source if source.shape[1] else source.new_zeros(source.shape[0], 1)
        return CopyingState(inner, self.copy.remember(memory, ids, inner.lengths))

    def select(self, state: CopyingState, rows: Tensor) -> CopyingState:
        """Select rows of a state: fewer, repeated or reordered."""
        return CopyingState(self.inner.select(state.inner, rows), state.source.select(rows))  # type: ignore[arg-type]

    @torch.no_grad()
    def origins(self, source: Tensor, lengths: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return where the tokens of a target came from.

        Args:
            source, lengths: as for `forward`.
            target: ids (B, T): the begin token first; token t + 1 is judged by the prediction at t.

        Returns:
            The share of each token's probability that was copied, and the source position with the largest part of it;
            both (B, T − 1).
        """
        state = self.start(source, lengths)
        logits, (hidden, _) = self._predict_known(target[:, :-1], state)
        copied, row_state = self.copy.attend(hidden, state.source)
        generate = self.copy.share(logits, hidden, row_state)
        same = state.source.ids[:, None] == target[:, 1:, None]
        by_copy = (1 - generate) * (copied * same).sum(-1)
        in_vocabulary = target[:, 1:, None].clamp(max=self.config.size - 1)
        generated = logits.float().softmax(-1).gather(-1, in_vocabulary)[..., 0] * (target[:, 1:] < self.config.size)
        total = by_copy + generate * generated
        return by_copy / total.clamp(min=torch.finfo(total.dtype).tiny), (copied * same).argmax(-1)

    def _predict(self, target: Tensor, state: CopyingState) -> tuple[Tensor, CopyingState]:
        logits, (hidden, inner) = self._predict_known(target, state)
        logarithms: Tensor = self.copy(logits, hidden, state.source)
        return logarithms, CopyingState(inner, state.source)

    def _predict_known(
        self, target: Tensor, state: CopyingState
    ) -> tuple[Tensor, tuple[Tensor, RecurrentState | TransformerState]]:
        """Return the translator's logits, which its hooks see, and what its `advance` returns."""
        return self.inner.predict(self._without_copied(target), state.inner)  # type: ignore[arg-type]

    def _without_copied(self, ids: Tensor) -> Tensor:
        """Map out-of-vocabulary words to unknown, as the translator reads them."""
        return torch.where(ids < self.config.size, ids, self.unknown)
