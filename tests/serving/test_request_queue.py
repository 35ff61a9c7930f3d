"""The queue of a model: what is computed together, what is refused, what fails alone."""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from qkv.errors import DataError, Place
from qkv.serving.models import open_models
from qkv.serving.request_queue import BusyError, RequestQueue
from qkv.tasks.generate.settings import GenerateRequest
from qkv.tasks.point.settings import PointRequest
from qkv.tasks.translate.settings import TranslateRequest
from qkv.values.abandoning import AbandonedError

GREEDY, BEAM = TranslateRequest(), TranslateRequest(beam=4)

LONG: dict[str, tuple[list[Any], Any]] = {
    "gru": (["the cat"], GREEDY),
    "transformer": (["the cat"], BEAM),
    "pointer": (["0.1,0.5 0.2,0.3"], PointRequest()),
    "language": (["the cat"], GenerateRequest(tokens=9)),
}
"""For models inputs and settings of several steps."""


class Gated:
    """Computes nothing until it may; remembers the batches."""

    def __init__(self) -> None:
        self.may, self.began = threading.Event(), threading.Event()
        self.seen: list[tuple[tuple[Any, ...], Any]] = []

    def __call__(self, inputs: Sequence[Any], settings: Any) -> list[dict[str, object]]:
        self.began.set()
        assert self.may.wait(60)
        self.seen.append((tuple(inputs), settings))
        if "bad" in inputs:
            raise DataError(Place("inputs", 1), "a good text", "bad", "Send another.")
        return [{"text": one} for one in inputs]


@pytest.fixture
def gate() -> Gated:
    return Gated()


@pytest.fixture
def batches(gate: Gated) -> Iterator[RequestQueue]:
    """A queue whose first request is being computed."""
    made = RequestQueue(gate, most=4, waiting=6)
    made.submit(["first"], GREEDY)
    assert gate.began.wait(60)
    yield made
    gate.may.set()
    made.close()


def test_equal_settings_are_computed_together(batches: RequestQueue, gate: Gated) -> None:
    futures = [
        batches.submit(inputs, settings)
        for inputs, settings in ((["a"], GREEDY), (["b"], BEAM), (["c", "d"], GREEDY), (["e", "f"], GREEDY))
    ]
    gate.may.set()
    texts = [[answer["text"] for answer in future.result(60)] for future in futures]
    assert texts == [["a"], ["b"], ["c", "d"], ["e", "f"]]
    assert [inputs for inputs, _ in gate.seen] == [("first",), ("a", "c", "d"), ("b",), ("e", "f")]
    assert gate.seen[2][1] is BEAM


@pytest.mark.parametrize("settings", [GenerateRequest(), TranslateRequest(sample=True)])
def test_what_is_drawn_is_computed_alone(settings: Any, batches: RequestQueue, gate: Gated) -> None:
    futures = [batches.submit([text], settings) for text in "ab"]
    gate.may.set()
    assert [future.result(60)[0]["text"] for future in futures] == ["a", "b"]
    assert [inputs for inputs, _ in gate.seen] == [("first",), ("a",), ("b",)]


def test_a_full_queue_refuses(batches: RequestQueue, gate: Gated) -> None:
    futures = [batches.submit(["a"] * 3, GREEDY) for _ in range(2)]
    with pytest.raises(BusyError):
        batches.submit(["b"], GREEDY)
    gate.may.set()
    assert [len(future.result(60)) for future in futures] == [3, 3]


def test_an_input_that_is_refused_is_not_the_fault_of_others(batches: RequestQueue, gate: Gated) -> None:
    good, bad = batches.submit(["a"], GREEDY), batches.submit(["bad"], GREEDY)
    gate.may.set()
    assert good.result(60)[0]["text"] == "a"
    with pytest.raises(DataError):
        bad.result(60)


def test_what_nobody_waits_for_is_not_computed(batches: RequestQueue, gate: Gated) -> None:
    given_up, other = batches.submit(["a"], BEAM), batches.submit(["b"], GREEDY)
    assert given_up.cancel()
    gate.may.set()
    other.result(60)
    assert [inputs for inputs, _ in gate.seen] == [("first",), ("b",)]


def test_a_queue_that_is_closed_cancels_what_waits(gate: Gated) -> None:
    queue = RequestQueue(gate, most=4, waiting=6)
    running = queue.submit(["first"], GREEDY)
    assert gate.began.wait(60)
    waiting = queue.submit(["a"], GREEDY)
    closing = threading.Thread(target=queue.close)
    closing.start()
    gate.may.set()
    closing.join(60)
    assert running.result(60)[0]["text"] == "first"
    assert waiting.cancelled()
    with pytest.raises(BusyError):
        queue.submit(["b"], GREEDY)


@pytest.mark.parametrize("name", ["gru", "transformer", "pointer", "language"])
def test_what_all_have_given_up_is_computed_no_further(name: str, folders: dict[str, Path]) -> None:
    (model,) = open_models([folders[name]], "cpu").values()
    inputs, settings = LONG[name]
    began, gone = threading.Event(), threading.Event()

    def compute(inputs: Sequence[Any], settings: Any) -> Sequence[Any]:
        began.set()
        assert gone.wait(60)
        return model.compute(inputs, settings)

    queue = RequestQueue(compute, most=4, waiting=6)
    future = queue.submit(inputs, settings)
    assert began.wait(60)
    future.cancel()
    gone.set()
    assert isinstance(future.exception(60), AbandonedError)
    queue.close()
