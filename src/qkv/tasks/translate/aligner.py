"""Word alignment with a translation model: which source word each target word attended to."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, final, get_args

import torch
from torch import Tensor

from qkv.data import segments
from qkv.data.batches import collate_sources, device_of, inference_batches, restore_order
from qkv.data.corpus import Pair
from qkv.data.open_vocabulary import encode_pair
from qkv.data.tokenizer import Tokenizer
from qkv.data.words import SEPARATORS, split_words
from qkv.decode.likeliest import expect_numbers
from qkv.errors import ConfigError, DataError, Place, expect_name, nearest, setting
from qkv.metrics.alignment import Link, Links, alignment_error_rate
from qkv.metrics.figure import Figure
from qkv.metrics.ibm_model_1 import ExpectedLinks
from qkv.metrics.symmetrize import symmetrize
from qkv.models.copying import CopyingTranslator
from qkv.recording.recorder import record
from qkv.tasks.notes import counted
from qkv.tasks.translate.alignment_reading import AGREEMENT, AlignmentReading, attention_layers
from qkv.tasks.translate.predict import Translator
from qkv.tasks.translate.settings import Symmetrization
from qkv.values.checked import answering

_BATCH_TOKENS = 2048
NO_WORD = -1
MUTUAL = "mutual"
METHODS = get_args(Symmetrization)
"""How two directions are combined: by the sum of their weights, or by combining the links of each."""

Names = tuple[object | None, object | None]
"""The files of the sources and of the targets; None for pairs that come from elsewhere."""


class _Numbers(NamedTuple):
    """A pair as token ids, and the word of each token."""

    source: tuple[int, ...]
    target: tuple[int, ...]
    source_words: list[int]
    target_words: list[int]


@final
@answering
class Aligner:
    """Reads alignments from a translator's cross-attention while forcing it to write given translations.

    Args:
        translator: a model with attention.

    Raises:
        ConfigError: the model has no attention, or writes right to left.

    Source: Bahdanau et al. 2015, section 5.2.1; Garg et al. 2019, "Jointly Learning to Align and Translate with
        Transformer Models", section 4 (which layer).

    Example:
        >>> import qkv  # doctest: +SKIP
        >>> aligner = Aligner(qkv.load("runs/de-en"))  # doctest: +SKIP
        >>> aligner.align([Pair("ein Hund", "a dog", 1)])  # doctest: +SKIP
        [{(0, 0), (1, 1)}]
    """

    def __init__(self, translator: Translator) -> None:
        if translator.right_to_left[0]:
            hint = "Align with a run that writes left to right."
            raise ConfigError("run", "a model that writes left to right", "one of right to left", hint)
        self.translator = translator
        self.layers = attention_layers(translator.model)

    @property
    def default(self) -> AlignmentReading:
        """The default reading, see `Translator.reading`."""
        return self.translator.reading

    def align(self, pairs: Sequence[Pair], reading: AlignmentReading | None = None) -> list[set[Link]]:
        """Align sentences with their translations.

        Args:
            pairs: words separated by spaces.
            reading: the weights to read; None for `default`.

        Returns:
            The links of each pair, source word first, counted from 0: one per target word.

        Raises:
            ConfigError: the model does not have this layer or head.
            DataError: a pair is too long; the message gives its line.
        """
        return [likeliest(weights) for weights in self.weights(pairs, reading)]

    def weights(
        self, pairs: Sequence[Pair], reading: AlignmentReading | None = None, names: Names = (None, None)
    ) -> list[Tensor]:
        """Return the weights of each target word on the source words.

        Args:
            pairs: words separated by spaces.
            reading: the weights to read; None for `default`.
            names: the files of the sources and of the targets, for messages; None for pairs from elsewhere.

        Returns:
            For each pair (target words, source words), summed over the tokens of a source word and averaged over those
            of a target word.

        Raises:
            ConfigError: the model does not have this layer or head.
            DataError: a pair is too long; the message gives its file and line.
        """
        reading = reading or self.default
        if reading.layer not in self.layers:
            hint = nearest(reading.layer, self.layers)
            raise ConfigError(setting("layer"), "an attention over the source", f'"{reading.layer}"', hint)
        return [_read(weights, reading) for weights in self._weights(pairs, [reading.layer], names)]

    def encode(self, pair: Pair) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the ids of a source and of its target; a model that copies numbers words beyond its vocabulary."""
        copies = isinstance(self.translator.model, CopyingTranslator)
        return encode_pair(pair.source, pair.target, self.translator.tokenizer, copies=copies)

    def choose(
        self, pairs: Sequence[Pair], gold: Sequence[Links], names: Names = (None, None)
    ) -> tuple[AlignmentReading, Figure]:
        """Find the layer, head and step whose links are closest to manual alignments.

        Args:
            pairs: validation sentences.
            gold: their manual alignments.
            names: as for `weights`.

        Returns:
            The reading, and its alignment error rate on these pairs.
        """
        return self._best(pairs, names, lambda links: alignment_error_rate(links, gold))

    def choose_by_agreement(
        self, pairs: Sequence[Pair], expected: ExpectedLinks, names: Names = (None, None)
    ) -> tuple[AlignmentReading, Figure]:
        """Find the layer, head and step whose links agree most with those that the words of the pairs alone suggest.

        Args:
            pairs: held-out sentences.
            expected: the links of IBM Model 1 on these pairs.
            names: as for `weights`.

        Returns:
            The reading, and its agreement in percent, whose signature names it.
        """

        def agreement(links: Sequence[set[Link]]) -> Figure:
            return Figure(AGREEMENT, 100 * expected.agreement(links), ExpectedLinks.signature)

        reading, figure = self._best(pairs, names, agreement)
        return reading, replace(figure, signature=f"{reading.signature}|{figure.signature}")

    def _best(
        self, pairs: Sequence[Pair], names: Names, judge: Callable[[list[set[Link]]], Figure]
    ) -> tuple[AlignmentReading, Figure]:
        """Return the reading whose links have the best figure, and the figure; the first of equal ones."""
        weights = list(self._weights(pairs, self.layers, names))
        best = None
        for reading in self._readings(weights):
            figure = judge([likeliest(_read(weights_of_pair, reading)) for weights_of_pair in weights])
            if best is None or figure.better_than(best[1]):
                best = reading, figure
        assert best is not None
        return best

    def _readings(self, weights: Sequence[dict[str, Tensor]]) -> list[AlignmentReading]:
        heads = {layer: weights[0][layer].shape[1] for layer in self.layers}
        return [
            AlignmentReading(layer, head, when)
            for layer in self.layers
            for head in (None, *(range(heads[layer]) if heads[layer] > 1 else ()))
            for when in ("at", "after")
        ]

    def _weights(self, pairs: Sequence[Pair], layers: Sequence[str], names: Names) -> Iterator[dict[str, Tensor]]:
        """Return, for each pair and layer, the weights between words; see `_between_words`."""
        numbered = [self._numbers(pair, names) for pair in pairs]
        batches = inference_batches([max(len(pair.source), len(pair.target)) for pair in numbered], _BATCH_TOKENS)
        results = [self._batch([numbered[index] for index in batch], layers) for batch in counted(batches)]
        return iter(restore_order(batches, results))

    @torch.no_grad()
    def _batch(self, numbers: Sequence[_Numbers], layers: Sequence[str]) -> list[dict[str, Tensor]]:
        model, tokenizer = self.translator.model, self.translator.tokenizer
        device = device_of(model)
        source, lengths = collate_sources([pair.source for pair in numbers], tokenizer.pad, device)
        target, _ = collate_sources([(tokenizer.bos, *pair.target) for pair in numbers], tokenizer.pad, device)
        with record(model, layers=layers) as trace:
            model(source, lengths, target)
        recorded = {layer: trace.weights(layer).float().cpu() for layer in layers}
        for layer, weights in recorded.items():
            expect_numbers(weights, f"the attention {layer}")
        return [
            {layer: _between_words(_by_head(weights[row]), pair) for layer, weights in recorded.items()}
            for row, pair in enumerate(numbers)
        ]

    def _numbers(self, pair: Pair, names: Names) -> _Numbers:
        tokenizer = self.translator.tokenizer
        source, target = self.encode(pair)
        for side, name, ids in zip(("source", "target"), names, (source, target), strict=True):
            if not 0 < len(ids) <= self.translator.longest:
                expected = f"from 1 to {self.translator.longest} tokens"
                hint = "Remove or split the line."
                raise DataError(Place(name, pair.line, f"{side} line"), expected, f"{len(ids)}", hint)
        words = words_of_tokens(pair.source, tokenizer.source), words_of_tokens(pair.target, tokenizer, target=True)
        return _Numbers(source, target, *words)


def words_of_tokens(text: str, tokenizer: Tokenizer, *, target: bool = False) -> list[int]:
    """Return the index of the word of each token.

    Args:
        text: the text.
        tokenizer: the tokenizer.
        target: whether it is a target, to which a published tokenizer adds no special tokens.

    Returns:
        For each id of `tokenizer.encode(text)` the index of its word in `split_words(text)`; −1 for a token that is
        only a space, or was added.

    Example:
        >>> tokenizer = Tokenizer.learn(["low lower"] * 9, kind="bpe", size=264)
        >>> words_of_tokens("low lower", tokenizer)[0], words_of_tokens("low lower", tokenizer)[-1]
        (0, 1)
    """
    if tokenizer.imported is not None:
        of_characters, tokens = _of_characters(text), tokenizer.imported.tokens(text, target=target)
        return [_first_word(of_characters[token.start : token.end]) for token in tokens]
    prepared = tokenizer.vocabulary.prepared
    # A normal form can write spaces into a word: each of its words belongs to the one that it comes from.
    written = [index for index, word in enumerate(split_words(text)) for _ in split_words(prepared(word))]
    return [word if word == NO_WORD else written[word] for word in _of_prepared(prepared(text), tokenizer)]


def _first_word(words: Sequence[int]) -> int:
    return next((word for word in words if word != NO_WORD), NO_WORD)


def _of_prepared(text: str, tokenizer: Tokenizer) -> list[int]:
    """Return the index of the word of each token in a normalized text."""
    if tokenizer.kind == "word":
        return _of_words(text)
    if tokenizer.kind == "none":
        return list(range(len(split_words(text))))
    if tokenizer.kind == "char":
        return _of_characters(text)
    # Tokens are pieces of the bytes of the text, before which a space stands.
    of_bytes = [NO_WORD]
    for character, word in zip(text, _of_characters(text), strict=True):
        of_bytes += [word] * len(character.encode())
    words, start = list[int](), 0
    for number in tokenizer.encode(text):
        end = start + len(tokenizer.vocabulary.pieces[number])
        words.append(_first_word(of_bytes[start:end]))
        start = end
    return words


def _of_characters(text: str) -> list[int]:
    """Return the index of the word of each character; −1 for what separates words."""
    word, inside, words = NO_WORD, False, list[int]()
    for character in text:
        begins = character not in SEPARATORS
        word, inside = word + (begins and not inside), begins
        words.append(word if inside else NO_WORD)
    return words


def _of_words(text: str) -> list[int]:
    """Return the index of the word of each token."""
    words, indices, start = _of_characters(text), list[int](), 0
    written = text.replace(segments.JOINER, segments.JOINER_IN_TEXT)
    for piece in map(segments.bare, segments.words(text)):
        start = written.index(piece, start)
        indices.append(words[start])
        start += len(piece)
    return indices


def likeliest(weights_TS: Tensor) -> set[Link]:
    """Link each target word to its most likely source word, source word first.

    Example:
        >>> sorted(likeliest(torch.tensor([[0.9, 0.1], [0.8, 0.2]])))
        [(0, 0), (0, 1)]
    """
    return {(s, t) for t, s in enumerate(weights_TS.argmax(-1).tolist())} if weights_TS.numel() else set()


def mutual(forward_TS: Tensor, backward_ST: Tensor) -> set[Link]:
    """Link words that are each other's most likely partner, by the sum of the weights of both directions.

    Args:
        forward_TS: the weights of each target word, (target words, source words).
        backward_ST: the weights of each source word in a model of the other direction.

    Returns:
        The links, source word first: at most one per word.

    Source: Liang et al. 2006, "Alignment by Agreement" (weights of both directions decide together); Jalili Sabet et
        al. 2020, "SimAlign", section 3.1, "Argmax".

    Example:
        >>> forward, backward = torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([[0.7, 0.3], [0.1, 0.9]])
        >>> sorted(mutual(forward, backward))
        [(0, 0), (1, 1)]
    """
    summed = forward_TS + backward_ST.mT
    if not summed.numel():
        return set()
    back = summed.argmax(0).tolist()
    return {(s, t) for t, s in enumerate(summed.argmax(1).tolist()) if back[s] == t and summed[t, s] > 0}


def join(method: str, forward: Sequence[Tensor], backward: Sequence[Tensor]) -> list[set[Link]]:
    """Combine the weights of both directions to links.

    Args:
        method: "mutual", or how the links of both directions are combined, see `qkv.metrics.symmetrize`.
        forward: for each pair (target words, source words).
        backward: for each pair (source words, target words), from a model of the other direction.

    Returns:
        The links of each pair, source word first.

    Raises:
        ConfigError: the name is unknown.
    """
    expect_name(setting("symmetrize"), method, METHODS)
    if method == MUTUAL:
        return [mutual(there, back) for there, back in zip(forward, backward, strict=True)]
    return [
        symmetrize(method, likeliest(there), {(s, t) for t, s in likeliest(back)})
        for there, back in zip(forward, backward, strict=True)
    ]


def _by_head(weights: Tensor) -> Tensor:
    return weights if weights.ndim == 3 else weights[None]


def _between_words(weights_HTS: Tensor, pair: _Numbers) -> Tensor:
    """Compute weights (2, H, T, S) between words, read at the step of each target token and after it.

    Weights are summed over the tokens of a source word and averaged over those of a target word.
    """
    count = len(pair.target)
    sources, targets = _membership(pair.source_words), _membership(pair.target_words)
    by_word = weights_HTS[..., : len(pair.source)] @ sources
    mean = targets.T / targets.sum(0)[:, None].clamp(min=1)
    return torch.stack([mean @ by_word[:, :count], mean @ by_word[:, 1 : count + 1]])


def _membership(indices: Sequence[int]) -> Tensor:
    """Return a matrix of tokens by words, 1 where a token is part of a word."""
    words = max(indices, default=NO_WORD) + 1
    columns = torch.tensor(indices, device="cpu")
    return ((columns[:, None] == torch.arange(words, device="cpu")) & (columns[:, None] != NO_WORD)).float()


def _read(weights: dict[str, Tensor], reading: AlignmentReading) -> Tensor:
    return reading.pick(weights[reading.layer][0 if reading.when == "at" else 1])
