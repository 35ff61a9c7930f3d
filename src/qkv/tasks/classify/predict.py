"""Trained classifiers: a label for each text, with probabilities and attention."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast, final

import torch
from torch import Tensor

from qkv.data.batches import device_of
from qkv.data.tokenizer import Tokenizer
from qkv.errors import CheckpointError, Place
from qkv.hub.published import PublishedConfig
from qkv.models.configs.reader import ClassifierConfig, ReaderConfig
from qkv.models.reader import TextClassifier
from qkv.recording import record
from qkv.settings import build
from qkv.tasks.classify.data import EncodedText, Labeling, features_of, read_texts
from qkv.tasks.classify.labeling import ReaderModel, predict
from qkv.tasks.classify.model import build_model
from qkv.tasks.classify.settings import ClassifyEvaluation
from qkv.tasks.length import expect_length
from qkv.tasks.python_values import expect_texts
from qkv.tasks.runs import OTHER_VERSION, Trained, rebuild
from qkv.tasks.task import Scored
from qkv.tasks.text_attention import last_self_attention, read_scene
from qkv.values.checked import answering
from qkv.view.alignment import Alignment

if TYPE_CHECKING:
    from qkv.view.live import LiveModel
    from qkv.view.scene import Scene


@final
@dataclass(frozen=True, eq=False)
class Classification:
    """The label of a text.

    Args:
        text: the given text.
        label: the most likely label.
        probabilities: of all labels by name, most likely first.
        tokens: as the model sees them.
        weights: the share of each token in the text's vector (S,); None if not requested.
    """

    text: str
    label: str
    probabilities: dict[str, float]
    tokens: tuple[str, ...]
    weights: Tensor | None = None

    @property
    def alignment(self) -> Alignment | None:
        """How much each token contributed to the label."""
        return (
            None
            if self.weights is None
            else Alignment(self.tokens, (self.label,), self.weights[None], ("text", "label"))
        )


@answering
class Labeler:
    """A model that labels texts, or their words, with its tokenizer.

    Args:
        model: the network.
        tokenizer: text to tokens and back.
        labels: the names of the labels, in the order of the network's scores.
        longest: maximum tokens of a text.
    """

    task: ClassVar[Labeling]

    def __init__(self, model: ReaderModel, tokenizer: Tokenizer, labels: Sequence[str], longest: int) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.labels = tuple(labels)
        self.longest = longest

    @classmethod
    def of(cls, trained: Trained, device: str | torch.device = "cpu") -> Self:
        """Build the model of a checkpoint, or of a published classifier of texts or tokens, see `Answerer.of`."""
        return cls(*_rebuilt(cls.task, trained, device))

    def export_facts(self, to: str) -> dict[str, Any]:
        """Return what `about.json` of an export says, see `qkv.tasks.task.Answerer`."""
        reads_words = self.tokenizer.imported is None  # word by word
        return {"task": self.task, "longest": self.longest, "labels": list(self.labels), "reads_words": reads_words}


@final
@answering
class Classifier(Labeler):
    """A model that classifies texts, ready to use.

    Args:
        model: the network.
        tokenizer: text to tokens and back.
        labels: the names of the labels, in the order of the network's scores.
        longest: maximum tokens of a text.

    Example:
        >>> import qkv  # doctest: +SKIP
        >>> qkv.load("runs/films").classify(["a stirring , funny film"])  # doctest: +SKIP
        ['1']
    """

    task = "classify"

    def classify(self, texts: Sequence[str]) -> list[str]:
        """Label texts.

        Args:
            texts: one or more.

        Returns:
            The most likely label of each.

        Raises:
            DataError: a text is too long.
        """
        return [answer.label for answer in self.classify_fully(texts)]

    def classify_fully(self, texts: Sequence[str], *, attention: bool = False, first: int = 1) -> list[Classification]:
        """Label texts, with probabilities.

        Args:
            texts: one or more; an empty one is labeled by the bias alone.
            attention: whether to return the share of each token.
            first: number of the first text, for messages.

        Returns:
            One classification per text, in order.

        Raises:
            DataError: a text is too long.
        """
        texts = expect_texts(texts, "texts")
        items = [self._item(text, number) for number, text in enumerate(texts, start=first)]
        results = predict(self.model, items, self.tokenizer.pad) if items else []
        return [
            self._classification(text, item, scores[0], attention)
            for text, item, scores in zip(texts, items, results, strict=True)
        ]

    def attention(self, ids: Sequence[int]) -> Tensor:
        """Return the share of each token in the text's vector (S,).

        A published classifier reads the text from its first token: the share is what that one attends to in the last
        layer, the mean over its heads.
        """
        model = cast("TextClassifier", self.model)
        if model.attention_layer is None:
            return last_self_attention(self, list(ids))[0]
        device = device_of(model)
        with torch.no_grad(), record(model, layers=[model.attention_layer]) as trace:
            model(torch.tensor([list(ids)], device=device), torch.tensor([len(ids)], device=device))
        return trace.weights(model.attention_layer)[0, 0].float().cpu()

    def score_files(self, files: ClassifyEvaluation) -> Scored:
        """Score the model on files, with the code of its training.

        Args:
            files: as `qkv evaluate` is given them.

        Returns:
            The figures, and label<TAB>text of each line, which can be trained on.

        Raises:
            DataError: a file is invalid; the message gives file and line.
            ConfigError: a file is missing, or a setting is invalid.
        """
        from qkv.tasks.classify.scoring import score_labels

        return score_labels(
            self,
            read_texts(files.data, "data", files.columns),
            files.data,
            lambda texts: [(label,) for label in self.classify([text.words[0] for text in texts])],
            "texts",
        )

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

    def in_page(self) -> "tuple[Classifier, LiveModel]":
        """Return the classifier with the weights of a page, and what the page needs, see `ComputesInPage`."""
        from qkv.tasks.classify.live import page_of
        from qkv.view.live import rounded_to_int8

        rounded = Classifier(rounded_to_int8(self.model), self.tokenizer, self.labels, self.longest)
        return rounded, page_of(rounded.model, self.tokenizer, self.labels, self.longest)

    def page_answers(self, texts: Sequence[str]) -> list[str]:
        """Return the label of each text."""
        return self.classify(texts)

    def _item(self, text: str, number: int) -> EncodedText:
        ids = tuple(self.tokenizer.encode(text))
        expect_length(Place(None, number, "text"), len(ids), self.longest, self.tokenizer)
        item = EncodedText(ids, (0,), (), number)
        buckets = cast("TextClassifier", self.model).buckets
        return item._replace(features=features_of(text, self.tokenizer, buckets))

    def _classification(self, text: str, item: EncodedText, scores: Tensor, attention: bool) -> Classification:
        shares = scores.double().softmax(-1)
        order = shares.argsort(descending=True, stable=True).tolist()
        probabilities = {self.labels[index]: float(shares[index]) for index in order}
        weights = self.attention(item.ids) if attention and item.ids else None
        pieces = tuple(self.tokenizer.pieces(item.ids))
        return Classification(text, self.labels[order[0]], probabilities, pieces, weights)


def _rebuilt(
    kind: Labeling, trained: Trained, device: str | torch.device
) -> tuple[ReaderModel, Tokenizer, tuple[str, ...], int]:
    """Return the model of a checkpoint, its tokenizer, the names of its labels, and its maximum number of tokens."""
    tokenizer, config = trained.tokenizer, dict[str, Any](trained.contents.config)
    labels, longest, table = config.get("labels"), config.get("longest"), config.get("model")
    is_valid = isinstance(labels, list) and all(isinstance(label, str) for label in labels)
    if not is_valid or not isinstance(longest, int) or not isinstance(table, dict):
        raise CheckpointError(str(trained.folder), "labels and sizes in config.json", "others", OTHER_VERSION)
    names = tuple(str(label) for label in cast("list[object]", labels))
    size, unknown = tokenizer.size, tokenizer.unk
    own: type[ReaderConfig] = ClassifierConfig if kind == "classify" else ReaderConfig
    configuration: Any = PublishedConfig if trained.is_published else own
    model = rebuild(lambda: build_model(build(configuration, table, "model"), size, names, unknown), trained, device)
    return model, tokenizer, names, longest
