"""Commands that take long say what they do, and how much of it is done, on standard error."""

import threading
from collections.abc import Callable

import pytest
from tests.cli.command import run, succeeded
from tests.cli.shelf import Shelf

from qkv.heartbeat import Heartbeat
from qkv.tasks import notes
from qkv.tasks.notes import Verbosity, counted, use_verbosity, working


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every work takes longer than the longest silence: it ends after its first line."""

    class Patient:
        def __init__(self, beat: Callable[[], object], seconds: float) -> None:
            self._said = threading.Event()
            self._heartbeat = Heartbeat(lambda: (beat(), self._said.set()), seconds)

        def close(self) -> None:
            assert self._said.wait(60)
            self._heartbeat.close()

    monkeypatch.setattr(notes, "SILENCE", 0.01)
    monkeypatch.setattr(notes, "Heartbeat", Patient)


def test_a_line_says_how_much_is_done(impatient: None, capsys: pytest.CaptureFixture[str]) -> None:
    with working("translating"):
        for batch in counted([[4, 5], [6]]):
            _until(capsys, f"qkv: translating, {0 if len(batch) == 2 else 2} of 3, ")


def _until(capsys: pytest.CaptureFixture[str], words: str) -> None:
    while words not in capsys.readouterr().err:
        pass


def test_nothing_is_said_to_who_asked_for_quiet_or_calls_a_function(
    impatient: None, capsys: pytest.CaptureFixture[str]
) -> None:
    with use_verbosity(Verbosity("quiet")), working("translating"):
        pass
    assert list(counted([[1], [2, 3]])) == [[1], [2, 3]]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("command", "feed", "said"),
    [
        ("translate translate", "a b\nb a\nc\n", "translating"),
        ("evaluate translate --data pairs.tsv", "", "evaluating"),
        ("align translate --data pairs.tsv", "", "aligning"),
        ("classify classify", "a film\na good film\n", "classifying"),
        ("evaluate classify --data films.tsv", "", "evaluating"),
        ("tag tag", "Ada wrote\n", "tagging"),
        ("point point", "3 1 2\n1 2\n", "pointing"),
        ("evaluate point --data sort.tsv", "", "evaluating"),
        ("evaluate generate --text plays.txt", "", "evaluating"),
        ("generate generate --json --tokens 3 --prompt KING", "", "generating"),
        ("generate generate --beam 2 --tokens 3 --prompt KING", "", "searching"),
        ("regress regress", "area\n30\n", "predicting"),
        pytest.param("export generate --to onnx --out o", "", "exporting", marks=pytest.mark.slow),
        ("view translate --text ab --export page.html", "", "writing the page"),
    ],
)
def test_every_command_that_can_take_long_says_what_it_does(
    command: str, feed: str, said: str, shelf: Shelf, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shelf.folder)
    name, task, *arguments = command.split()
    assert f"qkv: {said}, " in succeeded(run(name, shelf.run(task), *arguments, feed=feed)).stderr
