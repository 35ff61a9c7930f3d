"""Trained taggers: a label for each word, with probabilities and attention."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from torch import Tensor

from qkv.data.words import split_words
from qkv.errors import Place
from qkv.tasks.classify.data import EncodedText, encode_words
from qkv.tasks.classify.labeling import predict
from qkv.tasks.classify.predict import Labeler
from qkv.tasks.length import expect_length
from qkv.tasks.python_values import expect_texts
from qkv.tasks.tag.data import read_texts
from qkv.tasks.tag.settings import TagEvaluation
from qkv.tasks.task import Scored
from qkv.tasks.text_attention import expect_attention, last_self_attention, read_scene
from qkv.values.checked import answering
from qkv.view.alignment import Alignment

if TYPE_CHECKING:
    from qkv.view.scene import Scene


@final
@dataclass(frozen=True, eq=False)
class Tagging:
    """The labels of a text's words.

    Args:
        words: the given words.
        tags: the most likely label of each.
        probabilities: the probability of each of these labels.
        tokens: as the model sees them.
        weights: what the first token of each word attends to in the last layer (words, tokens), the mean over its
            heads; None if not requested.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    probabilities: tuple[float, ...]
    tokens: tuple[str, ...]
    weights: Tensor | None = None

    @property
    def alignment(self) -> Alignment | None:
        """What each word, with its tag, attends to."""
        tagged = tuple(f"{word}/{tag}" for word, tag in zip(self.words, self.tags, strict=True))
        return None if self.weights is None else Alignment(self.tokens, tagged, self.weights, ("text", "tags"))


@final
@answering
class Tagger(Labeler):
    """A model that tags words, ready to use.

    Args:
        model: the network.
        tokenizer: text to tokens and back.
        labels: the names of the tags, in the order of the network's scores.
        longest: maximum tokens of a sentence.

    Example:
        >>> import qkv  # doctest: +SKIP
        >>> qkv.load("runs/names").tag([["Ada", "wrote"]])  # doctest: +SKIP
        [('B-PER', 'O')]
    """

    task = "tag"

    def tag(self, sentences: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
        """Tag sentences.

        Args:
            sentences: the words of each.

        Returns:
            The most likely tag of each word.

        Raises:
            DataError: a sentence is too long.
        """
        return [tagging.tags for tagging in self.tag_fully(sentences)]

    def tag_fully(
        self, sentences: Sequence[Sequence[str]], *, attention: bool = False, first: int = 1
    ) -> list[Tagging]:
        """Tag sentences, with probabilities.

        Args:
            sentences: the words of each; can be empty.
            attention: whether to return what words attend to.
            first: number of the first sentence, for messages.

        Returns:
            One tagging per sentence, in order.

        Raises:
            DataError: a sentence is too long.
            ConfigError: attention is requested, and the model has none.
        """
        if attention:
            expect_attention(self.model)
        if isinstance(sentences, str | Mapping | Set):
            expect_texts(sentences, "sentences", "sentence")
        sentences = [expect_texts(words, f"sentence {number}", "word") for number, words in enumerate(sentences, first)]
        encoded = [encode_words(words, self.tokenizer) for words in sentences]
        items = []
        for number, (ids, begins) in enumerate(encoded, start=first):
            expect_length(Place(None, number, "text"), len(ids), self.longest, self.tokenizer)
            items.append(EncodedText(ids, begins, (), number))
        results = predict(self.model, items, self.tokenizer.pad) if items else []
        return [
            self._tagging(words, item, scores, attention)
            for words, item, scores in zip(sentences, items, results, strict=True)
        ]

    def score_files(self, files: TagEvaluation) -> Scored:
        """Score the model on files, with the code of its training.

        Args:
            files: as `qkv evaluate` is given them.

        Returns:
            The figures, and word<TAB>tag of each word with an empty line after each sentence, which can be trained on.

        Raises:
            DataError: a file is invalid; the message gives file and line.
            ConfigError: a file is missing, or a setting is invalid.
        """
        from qkv.tasks.classify.scoring import score_labels

        texts = read_texts(files.data, "data", files.columns)
        return score_labels(self, texts, files.data, lambda some: self.tag([text.words for text in some]), "sentences")

    def scene(self, text: str, tokens: int | None = None) -> "Scene":
        """Run the model on a text, and return what every layer attends to, for the viewer.

        Args:
            text: one text.
            tokens: number of tokens to read; None for all.

        Raises:
            DataError: the text has no tokens.
            ConfigError: the model has no attention.
        """
        ids, begins = encode_words(split_words(text), self.tokenizer)
        return read_scene(self, ids[:tokens], text, begins)

    def _tagging(self, words: Sequence[str], item: EncodedText, scores: Tensor, attention: bool) -> Tagging:
        best = scores.double().softmax(-1).max(-1)
        tags = tuple(self.labels[index] for index in best.indices.tolist())
        shares = tuple(best.values.tolist())
        weights = None
        if attention and item.ids:
            weights = last_self_attention(self, list(item.ids), item.begins)[list(item.begins)]
        return Tagging(tuple(words), tags, shares, tuple(self.tokenizer.pieces(item.ids)), weights)
