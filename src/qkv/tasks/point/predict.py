"""A trained pointer network: points at elements of its input, and shows the probabilities of all of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast, final, get_args

import torch
from torch import Tensor

from qkv.data.batches import device_of
from qkv.data.choices import Elements
from qkv.data.pointing import Pointed, parse_pairs, read_elements
from qkv.data.words import split_words
from qkv.errors import CheckpointError, Place
from qkv.metrics.figure import Figure
from qkv.models.configs.pointer import PointerConfig
from qkv.models.pointer import END, PointerNetwork
from qkv.recording.recorder import record
from qkv.settings import build
from qkv.tasks.pairs import PairSources
from qkv.tasks.point.pointing import ElementVocabulary, is_exact, judge_positions, point, stack
from qkv.tasks.point.settings import AnswerOrder, PointEvaluation, PointRequest
from qkv.tasks.python_values import expect_texts
from qkv.tasks.runs import OTHER_VERSION, Trained, rebuild
from qkv.tasks.task import Scored
from qkv.tasks.text_attention import expect_tokens, title_of
from qkv.tasks.tokenizing import report_unknown
from qkv.values.checked import answering
from qkv.view.alignment import Alignment

if TYPE_CHECKING:
    from qkv.view.scene import Scene

LAYER = "pointer.attention"
END_SHOWN = "<end>"


@final
@dataclass(frozen=True, eq=False)
class Pointing:
    """The answer for a line.

    Args:
        elements: the elements, as they were given.
        positions: what the model points at, from 1.
        score: the answer's log-probability, in nats.
        finished: whether the model ended the answer itself.
        weights: the probability of the end and of each element at each step (T, 1 + S), the last step the end; None if
            not requested.
    """

    elements: tuple[str, ...]
    positions: tuple[int, ...]
    score: float
    finished: bool
    weights: Tensor | None = None

    @property
    def chosen(self) -> tuple[str, ...]:
        """The elements that are pointed at."""
        return tuple(self.elements[index - 1] for index in self.positions)

    @property
    def alignment(self) -> Alignment | None:
        """What each step pointed at."""
        sides = (END_SHOWN, *self.elements), (*self.chosen, END_SHOWN)
        return None if self.weights is None else Alignment(*sides, self.weights, ("elements", "chosen"))


@final
@answering
class ElementPointer:
    """A pointer network with its words, ready to use.

    Args:
        model: the network.
        vocabulary: the words that are elements; None for numbers.
        elements: what elements are.
        order: whether the order of an answer counts.
        longest: maximum positions of an answer.

    Example:
        >>> import qkv  # doctest: +SKIP
        >>> qkv.load("runs/sort").point(["30 10 20"])  # doctest: +SKIP
        [(2, 3, 1)]
    """

    def __init__(
        self,
        model: PointerNetwork,
        vocabulary: ElementVocabulary | None,
        elements: Elements,
        order: AnswerOrder,
        longest: int,
    ) -> None:
        self.model = model.eval()
        self.vocabulary = vocabulary
        self.kind: Elements = elements
        self.order: AnswerOrder = order
        self.longest = longest

    @classmethod
    def of(cls, trained: Trained, device: str | torch.device = "cpu") -> "ElementPointer":
        """Build the model of a checkpoint, see `Answerer.of`."""
        config: dict[str, Any] = dict(trained.contents.config)
        fits = config.get("elements") in get_args(Elements) and config.get("order") in get_args(AnswerOrder)
        sizes = all(type(size) is int and 0 < size < 2**31 for size in (config.get("features"), config.get("longest")))
        words, table = config.get("words"), config.get("model")
        named = words is None or (isinstance(words, list) and all(isinstance(word, str) for word in words))
        fits = fits and sizes and named
        if not fits or not isinstance(table, dict) or (config["elements"] == "words") != bool(words):
            expected = "elements and sizes in config.json"
            raise CheckpointError(str(trained.folder), expected, "others", OTHER_VERSION)
        elements, features = config["elements"], config["features"]
        vocabulary = None if words is None else ElementVocabulary(cast("list[str]", words))

        def network() -> PointerNetwork:
            return PointerNetwork(replace(build(PointerConfig, table, "model"), elements=elements, features=features))

        model = rebuild(network, trained, device)
        return cls(model, vocabulary, elements, config["order"], config["longest"])

    def point(self, lines: Sequence[str], *, beam: int = 1) -> list[tuple[int, ...]]:
        """Point at elements.

        Args:
            lines: elements separated by spaces, as in training; an empty line gives no positions.
            beam: beam width; 1 is greedy.

        Returns:
            The positions for each line, from 1.

        Raises:
            DataError: an element is not a number, or a vector has another width.
            ConfigError: the beam width is below 1.
        """
        return [answer.positions for answer in self.point_fully(lines, beam=beam)]

    def point_fully(
        self, lines: Sequence[str], *, beam: int = 1, attention: bool = False, first: int = 1
    ) -> list[Pointing]:
        """Point at elements, with probabilities.

        Args:
            lines: elements separated by spaces; can be empty.
            beam: beam width; 1 is greedy.
            attention: whether to return the probabilities of all elements at each step.
            first: number of the first line, for messages.

        Returns:
            One answer per line.

        Raises:
            DataError, ConfigError: as for `point`.
        """
        build(PointRequest, {"beam": beam})
        lines = expect_texts(lines, "lines")
        items = {index: self.read(line, index + first) for index, line in enumerate(lines) if line.strip()}
        answers = point(self.model, list(items.values()), self.vocabulary, self.longest, beam) if items else []
        answer_of = dict(zip(items, answers, strict=True))
        results = []
        for index, line in enumerate(lines):
            elements = tuple(split_words(line))
            if index not in answer_of:
                results.append(Pointing(elements, (), 0.0, finished=True))
                continue
            best = answer_of[index]
            weights = self.attention(items[index], best.ids) if attention else None
            results.append(Pointing(elements, best.ids, best.score, best.finished, weights))
        return results

    def read(self, line: str, number: int = 1) -> Pointed:
        """Read the elements of a line.

        Raises:
            DataError: an element is not a number, or a vector has another width.
        """
        width = self.model.config.features if self.kind == "numbers" else None
        return Pointed(read_elements(line, self.kind, Place(None, number), width), (), number)

    def attention(self, item: Pointed, positions: Sequence[int]) -> Tensor:
        """Return the probability of the end and of each element at each step of an answer (T + 1, 1 + S)."""
        with torch.no_grad(), record(self.model, layers=[LAYER]) as trace:
            self.run(item, positions)
        return trace.weights(LAYER)[0].float().cpu()

    def run(self, item: Pointed, positions: Sequence[int]) -> None:
        """Let the model read a line and an answer, for recording."""
        batch = stack([item], self.vocabulary, device_of(self.model))
        previous = torch.tensor([[END, *positions]], device=device_of(self.model))
        self.model(batch.elements, batch.lengths, previous)

    def score_files(self, files: PointEvaluation) -> Scored:
        """Score the model on files, with the code of its training.

        Args:
            files: as `qkv evaluate` is given them.

        Returns:
            The figures, and the positions of each line.

        Raises:
            DataError: a file is invalid; the message gives file and line.
            ConfigError: a file is missing, or a setting is invalid.
        """
        sources = PairSources.of(files) or PairSources()
        width = self.model.config.features if self.kind == "numbers" else None
        items, _ = parse_pairs(sources.read(), sources.names, self.kind, width)
        if self.vocabulary is not None:
            report_unknown([self.vocabulary.ids(item.elements) for item in items], 0, "elements")
        positions, figures = self.evaluate(items, files.beam)
        answers = zip(positions, items, strict=True)
        return Scored(
            figures,
            (" ".join(map(str, row)) for row in positions),
            {"exact": lambda: [float(is_exact(list(row), list(item.target), self.order)) for row, item in answers]},
        )

    def scene(self, text: str, tokens: int | None = None) -> "Scene":
        """Point at the elements of a line, and return what the model attends to, for the viewer.

        Args:
            text: one line.
            tokens: number of elements to read; None for all.

        Returns:
            The pointer's attention between answer and elements; and, as another sequence, what elements attend to.

        Raises:
            DataError: the line has no elements, or others than the model knows.
        """
        excerpt = " ".join(expect_tokens(split_words(text)[:tokens]))
        item, (answer,) = self.read(excerpt), self.point_fully([excerpt])
        with torch.no_grad(), record(self.model) as trace:
            self.run(item, answer.positions)
        pointer = trace.selected([LAYER])
        sides = {"source": (END_SHOWN, *answer.elements), "target": (*answer.chosen, END_SHOWN)}
        scene = pointer.scene(0, sides, title=title_of(text))
        inner = [name for name, calls in trace.calls.items() if name != LAYER and calls]
        if not inner:
            return scene
        inside = trace.selected(inner).scene(0, {"text": answer.elements})
        return replace(scene, sequences={**scene.sequences, **inside.sequences}, layers=(*inside.layers, *scene.layers))

    def evaluate(self, items: Sequence[Pointed], beam: int = 1) -> tuple[list[tuple[int, ...]], list[Figure]]:
        """Score the model with the same code as in training.

        Args:
            items: lines with their targets.
            beam: beam width.

        Returns:
            The positions for each line, and the figures.

        Raises:
            ConfigError: the beam width is below 1.
        """
        build(PointRequest, {"beam": beam})
        positions = [hypothesis.ids for hypothesis in point(self.model, items, self.vocabulary, self.longest, beam)]
        return positions, judge_positions(positions, [item.target for item in items], self.order)
