import json
import os
from io import StringIO

import pytest
from tests.training.parts import run_training

from qkv.errors import CheckpointError, DataError
from qkv.metrics.figure import Figure
from qkv.training.events import Logged, Said, Updated, Validated
from qkv.training.journal import NAME, Journal, read_journal


def logged(step: int) -> Logged:
    return Logged(step, 0, 2.5, 1e-3, 1.0, 100.0, step * 2.0, 10.0)


def write(run, steps, start=(0, 0)):
    journal = Journal(run, *start)
    for step in steps:
        journal(Updated(step, 2.0))
        journal(Said("not for the journal"))
        journal(logged(step))
        journal(Validated(step, [Figure("bleu", step / 10, "")], step == 20))
    journal.close()
    return journal


def test_lines_are_there_as_soon_as_they_happen(tmp_path):
    journal = Journal(tmp_path, 0, 0)
    journal(logged(10))
    line = json.loads((tmp_path / "metrics.jsonl").read_text())
    journal.close()
    assert (line["step"], line["kind"], line["loss"], line["learning_rate"]) == (10, "train", 2.5, 1e-3)


def test_going_on_doubles_no_line(tmp_path):
    write(tmp_path, [10, 20, 30])
    journal = write(tmp_path, [30, 40], start=(20, 20))
    lines = read_journal(tmp_path / "metrics.jsonl")
    for kind in ("train", "validation"):
        assert [line["step"] for line in lines if line["kind"] == kind] == [10, 20, 30, 40]
    assert journal.seconds == 40.0
    assert [line["bleu"] for line in lines if line["kind"] == "validation"] == [1.0, 2.0, 3.0, 4.0]


def test_a_validation_that_will_be_made_again_is_dropped(tmp_path):
    write(tmp_path, [10, 20])
    Journal(tmp_path, 20, 10).close()
    lines = [(line["step"], line["kind"]) for line in read_journal(tmp_path / "metrics.jsonl")]
    assert lines == [(10, "train"), (10, "validation"), (20, "train")]


def test_beginning_anew_drops_all(tmp_path):
    write(tmp_path, [10])
    journal = Journal(tmp_path, 0, 0)
    journal.close()
    assert journal.seconds == 0
    assert (tmp_path / "metrics.jsonl").read_bytes() == b""


UNFINISHED = (b'{"step": 20, "ki', b"{", b'{"step": 20, "kind": "train", "loss": 1.5', b"\0" * 40, b'{"step": 2\0\0')


@pytest.mark.parametrize("end", UNFINISHED)
def test_an_unfinished_last_line_is_dropped_and_said(tmp_path, end):
    write(tmp_path, [10])
    path = tmp_path / "metrics.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + end)
    assert len(read_journal(path)) == 2
    said = []
    Journal(tmp_path, 10, 10, said.append).close()
    assert said == [f"Dropping 1 damaged line of {path}: the process, power or disk failed."]
    assert path.read_bytes() == whole
    write(tmp_path, [20], start=(10, 10))
    assert [line["step"] for line in read_journal(path, said.append)] == [10, 10, 20, 20]
    assert len(said) == 1


def test_a_complete_last_line_counts_without_its_line_feed(tmp_path):
    write(tmp_path, [10])
    path = tmp_path / "metrics.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole.removesuffix(b"\n"))
    said = []
    Journal(tmp_path, 10, 10, said.append).close()
    assert (said, path.read_bytes()) == ([], whole)


def test_a_resumed_training_says_that_a_line_was_damaged(tmp_path):
    run = tmp_path / "run"
    run_training(run)
    path = run / NAME
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"step": 13, "kind": "tr')
    stream = StringIO()
    run_training(run, stream=stream)
    assert stream.getvalue().count(f"Dropping 1 damaged line of {path}") == 1
    assert path.read_bytes() == whole


FOREIGN = (
    "x",
    "[]",
    "[" * 100_000,
    '{"kind": "train"}',
    '{"step": "a", "kind": "train"}',
    '{"step": "7", "kind": "train"}',
    '{"step": true, "kind": "train"}',
    '{"step": -1, "kind": "train"}',
    '{"step": 1.5, "kind": "train"}',
    '{"step": Infinity, "kind": "train"}',
    '{"step": 1e999, "kind": "train"}',
    '{"step": 2, "kind": 3}',
    '{"step": 2, "kind": "\\ud800"}',
    '{"step": 2, "kind": "train", "\\udfff": 1}',
    '{"step": 2, "kind": "train", "seconds": "long"}',
    '{"step": 2, "kind": "train", "seconds": [1]}',
    '{"step": 2, "kind": "train", "loss": NaN}',
    '{"step": 2, "kind": "train", "loss": 1%s}' % ("0" * 400),
)


@pytest.mark.parametrize("line", FOREIGN, ids=lambda line: line[:60])
def test_a_foreign_line_is_named(tmp_path, line):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "kind": "train"}\n' + line + "\n")
    for reader in (read_journal, lambda path: Journal(path.parent, 9, 9)):
        with pytest.raises(DataError, match=r"metrics\.jsonl:2: expected a line with step, kind and figures; got "):
            reader(tmp_path / "metrics.jsonl")


def test_a_figure_that_was_not_finite_is_no_figure(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "kind": "train", "seconds": null, "loss": null}\n')
    journal = Journal(tmp_path, 5, 5)
    journal.close()
    assert journal.seconds == 0.0


def test_infinity_is_written_as_null(tmp_path):
    journal = Journal(tmp_path, 0, 0)
    journal(Validated(5, [Figure("perplexity", float("inf"), "")], False))
    journal.close()
    assert read_journal(tmp_path / "metrics.jsonl")[0]["perplexity"] is None


def test_no_file_has_no_lines(tmp_path):
    assert read_journal(tmp_path / "metrics.jsonl") == []


def test_a_folder_in_its_place_is_a_typed_error(tmp_path):
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl"):
        Journal(tmp_path, 0, 0)


TORN = (b"\0" * 30, b"", b'{"step": 20, "ki', b'ing_rate": 0.1, "seconds": 2.0}', b'{"step": 2\0\0\0\0')


@pytest.mark.parametrize("line", TORN)
def test_a_line_that_a_lost_power_damaged_is_dropped_and_said(tmp_path, line):
    write(tmp_path, [10, 20])
    path = tmp_path / "metrics.jsonl"
    first, second, *rest = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([first, line, second, *rest]) + b"\n")
    said = []
    Journal(tmp_path, 20, 20, said.append).close()
    assert said == [f"Dropping 1 damaged line of {path}: the process, power or disk failed."]
    assert [line["step"] for line in read_journal(path, said.append)] == [10, 10, 20, 20]
    assert len(said) == 1


def test_the_lines_before_a_checkpoint_are_on_disk_before_it(tmp_path, monkeypatch):
    """The last file flushed before the first one of each checkpoint is the journal."""
    flushed = []
    fsync = os.fsync

    def noted(handle):
        flushed.append(os.readlink(f"/proc/self/fd/{handle}"))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    run_training(tmp_path / "run")
    saving = [n for n, path in enumerate(flushed) if "/.step-" in path]
    begun = [n for n in saving if n - 1 not in saving]
    assert len(begun) == 4
    assert all(flushed[n - 1].endswith("metrics.jsonl") for n in begun)
