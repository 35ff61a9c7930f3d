"""Preparing a corpus: the tokens of the whole text, the same bytes whoever makes them, and nothing half done."""

import bz2
import gzip
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.pairs import in_turn
from tests.programs_in_forks import run_program
from tests.tasks.corpora import contents, prepared, sentences, write_pairs, write_text
from tests.tasks.reading import read

from qkv.data.text import read_text
from qkv.data.vocabulary import KINDS
from qkv.errors import CheckpointError, ConfigError, DataError, QkvError
from qkv.system import locked
from qkv.tasks.corpora.manifest import Shard
from qkv.tasks.corpora.pairs import PreparedPairs
from qkv.tasks.corpora.prepared import PreparedCorpus, held_out_pairs
from qkv.tasks.corpora.text import PreparedText
from qkv.tasks.prepare import workers
from qkv.tasks.prepare.input_files import InputFiles, LineBlock
from qkv.tasks.prepare.preparing import Sample, prepare


def tokens_of(corpus: PreparedCorpus) -> list[int]:
    return [number for place in range(len(corpus.manifest.shards)) for number in corpus.ids(place).tolist()]


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_has_the_tokens_of_the_whole(tmp_path: Path, kind: str) -> None:
    files = write_text(tmp_path)
    done = prepared(files, tmp_path / "corpus", tokenizer=kind, lowercase=True)
    corpus = PreparedCorpus.load(done.folder, "text")
    text = PreparedText(corpus)
    held, _ = text.held_out()
    whole = "".join(read_text(file) for file in files)
    assert tokens_of(corpus) + held.ids.tolist() == corpus.tokenizer.encode(whole)
    assert len(corpus.manifest.shards) > 3
    assert (done.tokens, done.shards) == (text.tokens, len(corpus.manifest.shards))
    end = "".join(whole.splitlines(keepends=True)[-20:])
    assert held.characters == len(end) - len(corpus.tokenizer.decode(held.ids[:1].tolist()))
    ids = corpus.tokenizer.encode(whole)
    assert text.unknown + held.unknown == ids.count(corpus.tokenizer.unk)


@pytest.mark.parametrize("pairs", [False, True])
def test_any_number_of_processes_gives_the_same_bytes(tmp_path: Path, pairs: bool) -> None:
    files = [write_pairs(tmp_path)] if pairs else write_text(tmp_path)
    one = prepared(files, tmp_path / "one", pairs=pairs)
    three = prepared(files, tmp_path / "three", 3, pairs=pairs)
    assert one.digest == three.digest
    assert contents(one.folder) == contents(three.folder)


@pytest.mark.parametrize("pairs", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_killed_preparations_leave_what_an_undisturbed_one_makes(tmp_path: Path, pairs: bool) -> None:
    """Each is killed at a later system call than the one before, and the next one goes on with its folder."""
    (tmp_path / "in").mkdir()
    files = [write_pairs(tmp_path / "in", 90)] if pairs else write_text(tmp_path / "in", 90)
    killed = run_program("tests.tasks.corpora", tmp_path / "in", tmp_path / "killed", 7, 83, pairs)
    assert killed.returncode == 0, killed.stderr
    assert json.loads(killed.stdout) >= 5
    alone = prepared(files, tmp_path / "alone", pairs=pairs)
    assert prepared(files, tmp_path / "killed", pairs=pairs).digest == alone.digest
    assert contents(tmp_path / "killed") == contents(alone.folder)


@pytest.fixture
def pair_corpus(tmp_path: Path) -> tuple[list[Path], Path]:
    files = [write_pairs(tmp_path)]
    return files, prepared(files, tmp_path / "corpus", pairs=True).folder


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "damage"),
    in_turn(
        ["shard-00001.ids", "shard-00001.pairs", "tokenizer.json", "valid.jsonl", "MANIFEST.json"],
        [Path.unlink, flip, lambda path: os.truncate(path, 1)],
    ),
)
def test_damaged_parts_are_made_again(
    pair_corpus: tuple[list[Path], Path], name: str, damage: Callable[[Path], None]
) -> None:
    files, folder = pair_corpus
    before = contents(folder)
    damage(folder / name)
    again = prepared(files, folder, pairs=True)
    assert contents(folder) == before
    assert again.made == (len(list(folder.glob("*.ids"))) if name == "MANIFEST.json" else int("shard" in name))


def test_a_second_call_changes_nothing(pair_corpus: tuple[list[Path], Path]) -> None:
    files, folder = pair_corpus
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert prepared(files, folder, pairs=True).made == 0
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir() if path.name != ".lock"} == {
        path: time for path, time in before.items() if path.name != ".lock"
    }


def test_other_files_and_settings_are_refused_by_name(pair_corpus: tuple[list[Path], Path]) -> None:
    files, folder = pair_corpus
    before = contents(folder)
    for settings, name in (({"vocabulary": 300}, "vocabulary"), ({"seed": 3}, "seed"), ({"longest": 9}, "longest")):
        with pytest.raises(ConfigError) as caught:
            prepared(files, folder, pairs=True, **settings)
        assert name in caught.value.got
    files[0].write_text(files[0].read_text(encoding="utf-8") + "a\tb\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        prepared(files, folder, pairs=True)
    assert "inputs.1 pairs.tsv.sha256" in caught.value.got
    assert contents(folder) == before


def test_a_file_that_changes_meanwhile_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = write_text(tmp_path)
    blocks = InputFiles.blocks
    readings = []

    def changing(inputs: InputFiles, *given: Any) -> Any:
        readings.append(0)
        if len(readings) == 2:
            files[2].write_text("der hund\n" * 300, encoding="utf-8")
        return blocks(inputs, *given)

    monkeypatch.setattr(InputFiles, "blocks", changing)
    with pytest.raises(DataError) as caught:
        prepared(files, tmp_path / "corpus")
    assert caught.value.argument == "c.txt"
    assert not (tmp_path / "corpus" / "MANIFEST.json").exists()


def test_small_corpora_of_pairs_are_as_in_memory(tmp_path: Path) -> None:
    """The sample is all of them: the same tokenizer, the same pairs held out, the same examples."""
    file = write_pairs(tmp_path)
    folder = prepared([file], tmp_path / "corpus", pairs=True).folder
    memory = read("translate", data={"data": file}, tokenizer={"vocabulary": 350})
    disk = read("translate", data={"prepared": folder}, tokenizer={"vocabulary": 350})
    assert disk.tokenizer.to_json() == memory.tokenizer.to_json()
    assert disk.train.take(range(len(disk.train))) == memory.train.take(range(len(memory.train)))
    assert (disk.valid, disk.valid_examples.examples) == (memory.valid, memory.valid_examples.examples)
    assert disk.train.target_tokens == memory.train.target_tokens
    assert disk.limit == memory.limit
    assert disk.train.right_to_left().take([5]) == memory.train.right_to_left().take([5])


def test_no_source_is_held_out_and_trained_on(tmp_path: Path) -> None:
    """Though the sample is a part of the corpus, in which each source comes several times."""
    lines = sentences(100, 3) * 4
    file = tmp_path / "pairs.tsv"
    file.write_text("".join(f"{line}\t{number} {line}\n" for number, line in enumerate(lines)), encoding="utf-8")
    folder = prepared([file], tmp_path / "corpus", pairs=True, sample=0.004, shard_size=0.001).folder
    corpus = PreparedCorpus.load(folder, "pairs")
    assert 0 < corpus.manifest.work["sample"]["lines"] < 300  # type: ignore[index,call-overload,operator]
    pairs = PreparedPairs(corpus)
    held = {pair.source for pair in held_out_pairs(folder)}
    trained = {lines[example.index - 1] for example in pairs.take(range(len(pairs)))}
    assert held
    assert not held & trained
    assert trained | held == set(lines)


def test_texts_of_objects_end_with_the_end_token(tmp_path: Path) -> None:
    texts = [f"{line}\nzwei" for line in sentences(120, 1)]
    file = tmp_path / "texts.jsonl.gz"
    with gzip.open(file, "wt", encoding="utf-8") as stream:
        stream.writelines(json.dumps({"id": 3, "page": {"body": text}}) + "\n" for text in texts)
    corpus = PreparedCorpus.load(prepared([file], tmp_path / "corpus", field="page.body", holdout=7).folder, "text")
    eos = corpus.tokenizer.eos
    expected = [number for text in texts[:-7] for number in [*corpus.tokenizer.encode(text), eos]]
    assert tokens_of(corpus) == expected
    starts = [place for place, number in enumerate(expected) if number == eos][:-1]
    assert PreparedText(corpus).lines([0, *(start + 1 for start in starts)]) == list(range(1, 114))


def test_lines_of_a_text_are_counted_over_all_files(tmp_path: Path) -> None:
    files = write_text(tmp_path)
    corpus = PreparedCorpus.load(prepared(files, tmp_path / "corpus", tokenizer="char").folder, "text")
    ids = np.array(tokens_of(corpus))
    (newline,) = corpus.tokenizer.encode("\n")
    begins = [0, *(np.flatnonzero(ids == newline)[:-1] + 1).tolist()]
    assert PreparedText(corpus).lines(begins) == list(range(1, len(begins) + 1))


@pytest.mark.parametrize("form", ["files", "objects"])
def test_pairs_of_any_form_are_the_same(tmp_path: Path, form: str) -> None:
    rows = [line.split("\t") for line in write_pairs(tmp_path).read_text(encoding="utf-8").splitlines()]
    table = prepared([tmp_path / "pairs.tsv"], tmp_path / "table", pairs=True)
    if form == "files":
        for name, side in (("de.gz", 0), ("en", 1)):
            data = "".join(f"{row[side]}\n" for row in rows).encode()
            (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
        other = prepared([], tmp_path / "other", source=tmp_path / "de.gz", target=tmp_path / "en")
    else:
        made = "".join(json.dumps({"translation": {"de": de, "en": en}}) + "\n" for de, en in rows)
        (tmp_path / "pairs.jsonl").write_text(made)
        names = {"source_field": "translation.de", "target_field": "translation.en"}
        other = prepared([tmp_path / "pairs.jsonl"], tmp_path / "other", pairs=True, **names)
    one, two = (PreparedPairs(PreparedCorpus.load(done.folder, "pairs")) for done in (table, other))
    assert one.take(range(len(one))) == two.take(range(len(two)))
    assert held_out_pairs(table.folder) == held_out_pairs(other.folder)


def test_longer_pairs_are_refused_or_left_out(tmp_path: Path) -> None:
    file = write_pairs(tmp_path)
    with file.open("a", encoding="utf-8") as stream:
        stream.write("neu " * 90 + "\tx\n")
    with pytest.raises(DataError) as caught:
        prepared([file], tmp_path / "corpus", pairs=True, longest=80, seed=5)
    assert (caught.value.file, caught.value.line) == (str(file), 401)
    folder = prepared([file], tmp_path / "skipped", pairs=True, longest=80, seed=5, too_long="skip").folder
    assert sum(shard.left_out for shard in PreparedCorpus.load(folder, "pairs").manifest.shards) == 1


GOOD = b"der hund\n" * 40
BAD: dict[str, tuple[str, bytes, int, bool]] = {
    "no UTF-8": ("t.txt", GOOD + b"n\xe9\n" + GOOD, 41, False),
    "a NUL": ("t.txt", GOOD + b"a\0\n", 41, False),
    "a long line": ("t.txt", GOOD + b"a" * (2**20 + 1) + b"\n", 41, False),
    "no JSON": ("t.jsonl", b'{"text": "der"}\n' * 40 + b"{\n", 41, False),
    "a list": ("t.jsonl", b'{"text": "der"}\n' * 40 + b"[1]\n", 41, False),
    "a lack of the field": ("t.jsonl", b'{"text": "der"}\n' * 40 + b'{"body": "x"}\n', 41, False),
    "a number": ("t.jsonl", b'{"text": "der"}\n' * 40 + b'{"text": 3}\n', 41, False),
    "half of a character": ("t.jsonl", b'{"text": "der"}\n' * 40 + b'{"text": "\\ud800"}\n', 41, False),
    "a NUL in JSON": ("t.jsonl", b'{"text": "der"}\n' * 40 + b'{"text": "\\u0000"}\n', 41, False),
    "one column": ("t.tsv", b"a\tb\n" * 40 + b"a\n", 41, True),
    "an empty side": ("t.tsv", b"a\tb\n" * 40 + b"a\t \n", 41, True),
    "an empty line": ("t.tsv", b"a\tb\n" * 40 + b"\n", 41, True),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named_by_file_and_line(tmp_path: Path, case: str) -> None:
    name, data, line, pairs = BAD[case]
    file = tmp_path / name
    file.write_bytes(data)
    with pytest.raises(DataError) as caught:
        prepared([file], tmp_path / "corpus", pairs=pairs, holdout=2, sample=0.0001)
    assert (caught.value.file, caught.value.line) == (str(file), line)


def test_the_first_of_several_errors_is_reported_whatever_the_processes(tmp_path: Path) -> None:
    file = tmp_path / "t.txt"
    lines = [b"der hund lang\n"] * 900
    for bad in (500, 650, 800):
        lines[bad] = b"\xff\n"
    file.write_bytes(b"".join(lines))
    for processes in (1, 3):
        with pytest.raises(DataError) as caught:
            prepared([file], tmp_path / f"corpus-{processes}", processes, sample=0.0001)
        assert (caught.value.file, caught.value.line) == (str(file), 501)


@pytest.mark.parametrize(("left", "right"), [(50, 49), (49, 50), (3000, 40)])
def test_files_with_other_numbers_of_lines_are_refused(tmp_path: Path, left: int, right: int) -> None:
    files = [tmp_path / "left", tmp_path / "right"]
    for file, count in zip(files, (left, right), strict=True):
        file.write_text("ein wort\n" * count)
    with pytest.raises(DataError) as caught:
        prepared([], tmp_path / "corpus", source=files[0], target=files[1])
    assert caught.value.line == min(left, right) + 1
    assert f"{left:,} lines" in caught.value.got
    assert f"{right:,} lines" in caught.value.got


def test_what_cannot_be_prepared_is_refused(tmp_path: Path) -> None:
    files = write_text(tmp_path, 60)
    pairs = write_pairs(tmp_path)
    empty, objects = tmp_path / "empty", tmp_path / "o.jsonl"
    empty.write_bytes(b"")
    objects.write_text('{"text": "der"}\n')
    cases: list[tuple[type[QkvError], list[Path], dict[str, Any]]] = [
        (ConfigError, [], {}),
        (ConfigError, [*files, objects], {}),
        (DataError, [empty], {}),
        (DataError, [tmp_path / "none"], {}),
        (DataError, [tmp_path], {}),
        (ConfigError, files, {"source": pairs}),
        (ConfigError, [], {"source": pairs}),
        (ConfigError, files, {"holdout": 60}),
        (ConfigError, files, {"sample": 0}),
        (ConfigError, files, {"shard_size": 0}),
        (ConfigError, files, {"source_tokenizer": "word"}),
        (ConfigError, files, {"tokenizer": "words"}),
    ]
    for number, (kind, inputs, settings) in enumerate(cases):
        with pytest.raises(kind):
            prepared(inputs, tmp_path / f"corpus-{number}", **settings)
    with pytest.raises(ConfigError):
        prepared(files, tmp_path / "corpus", 0)


@pytest.mark.parametrize("name", ["blank.txt", "blank.jsonl"])
@pytest.mark.parametrize("blank", ["\n" * 50, " \t\n\u00a0\n", "\ufeff\r\n\n"], ids=["empty", "spaces", "marked"])
def test_a_file_of_blank_lines_is_no_text_even_beside_others(tmp_path: Path, name: str, blank: str) -> None:
    path = tmp_path / name
    path.write_text(blank, encoding="utf-8", newline="")
    good = tmp_path / f"a{path.suffix}"
    good.write_text('{"text": "der"}\n' * 9 if path.suffix == ".jsonl" else "der hund\n" * 9)
    for files in ([path], [good, path]):
        with pytest.raises(DataError, match=r"blank\.\w+: expected text; got empty lines only"):
            prepared(files, tmp_path / "corpus")


def test_one_file_under_two_names_is_refused(tmp_path: Path) -> None:
    path, other, link = tmp_path / "a.txt", tmp_path / "B 2.txt", tmp_path / "link.txt"
    path.write_text("der hund\n" * 9)
    other.write_text("die katze\n" * 9)
    link.symlink_to(path)
    for again in (path, link, tmp_path / "." / ".." / tmp_path.name / "a.txt"):
        with pytest.raises(ConfigError, match="one file"):
            prepared([path, other, again], tmp_path / "corpus")


def test_a_changed_file_of_any_name_is_named(tmp_path: Path) -> None:
    """The name is no setting, which a front end would spell in its own way."""
    path = tmp_path / "Big Corpus-2.txt"
    path.write_text("der hund\n" * 9)
    prepared([path], tmp_path / "corpus")
    path.write_text("die katze\n" * 9)
    with pytest.raises(ConfigError, match=r"1 Big Corpus-2\.txt") as error:
        prepared([path], tmp_path / "corpus")
    assert "ue000" not in str(error.value)


def test_a_text_of_one_line_is_told_to_grow_not_to_hold_out_less(tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    path.write_text("der hund")
    with pytest.raises(DataError, match=r"one\.txt: expected at least two lines"):
        prepared([path], tmp_path / "corpus")
    for name, body in {
        "a.zip": b"PK\x03\x04",
        "a.bz2": bz2.compress(b"der hund"),
        "a": b"\xff\n",
        "a.jsonl": b'["der"]\n',
    }.items():
        strange = tmp_path / name
        strange.write_bytes(body)
        with pytest.raises(DataError, match=rf"{name}:1: expected (text|valid UTF-8|a JSON object)"):
            prepared([strange], tmp_path / "corpus")


def test_advice_about_pairs_to_hold_out_names_what_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, more = tmp_path / "same.tsv", tmp_path / "more.tsv"
    file.write_text("".join(f"der hund\ta dog {number}\n" for number in range(60)))
    more.write_text("die katze\tthe cat\n" * 9)
    with pytest.raises(ConfigError) as raised:
        prepared([file], tmp_path / "corpus", pairs=True, holdout=2)
    assert "omit holdout" in raised.value.hint
    assert "when you train" in raised.value.hint
    folder = prepared([file], tmp_path / "corpus", pairs=True).folder
    said = capsys.readouterr().err
    assert "Give validation pairs when you train" in said
    text = read("translate", data={"prepared": folder, "valid_data": more})
    assert len(text.valid) == 9
    file.write_text("".join(f"hund {number % 4}\ta dog {number}\n" for number in range(60)))
    prepared([file], tmp_path / "held", pairs=True, holdout=2)
    said = capsys.readouterr().err
    assert "15 pairs are held out" in said
    assert "Give validation" not in said


def test_a_folder_of_something_else_or_in_use_is_refused(tmp_path: Path) -> None:
    files = write_text(tmp_path, 60)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").write_text("x")
    with pytest.raises(ConfigError):
        prepared(files, tmp_path / "mine")
    assert os.listdir(tmp_path / "mine") == ["letter"]
    with pytest.raises(CheckpointError):
        prepared(files, files[0])
    folder = prepared(files, tmp_path / "corpus").folder
    with locked(folder / ".lock"), pytest.raises(CheckpointError):
        prepared(files, folder)


SCRIPT = """
import os, signal, sys
from multiprocessing import active_children
from pathlib import Path

import qkv
from qkv.tasks.prepare import preparing, workers

def disturbed(folder, jobs, processes):
    def some():
        for job in jobs:
            yield job
            if sys.argv[3] == "worker":
                os.kill(active_children()[0].pid, signal.SIGKILL)
            elif sys.argv[3] == "parent":
                os.kill(os.getpid(), signal.SIGKILL)
            elif sys.argv[3] == "interrupt":
                os.killpg(0, signal.SIGINT)
    return workers.make_shards(folder, some(), processes)

preparing.make_shards = disturbed
qkv.prepare(sys.argv[1], out=sys.argv[2], processes=2, tokenizer="char", shard_size=0.002, quiet=True)
"""


@pytest.mark.parametrize(
    ("event", "code", "message"),
    [
        ("none", 0, ""),
        ("worker", 1, "processes: expected every process to go on; got one that signal 9 ended. Run the same command"),
        ("parent", -signal.SIGKILL, ""),
        ("interrupt", -signal.SIGINT, "KeyboardInterrupt"),
    ],
)
def test_no_process_outlives_a_preparation(tmp_path: Path, event: str, code: int, message: str) -> None:
    """In a script that is not guarded, in a folder whose modules have names of Python's own; it is continued later."""
    text = write_text(tmp_path)[0]
    script, work = tmp_path / "scripts" / "script.py", tmp_path / "work"
    for file, content in ((script, SCRIPT), (work / "struct.py", "raise SystemExit(9)")):
        file.parent.mkdir()
        file.write_text(content)
    done = subprocess.run(
        [sys.executable, script, text, tmp_path / "corpus", event],
        cwd=work,
        capture_output=True,  # until every process has ended
        text=True,
        timeout=120,
        start_new_session=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert event != "interrupt" or done.stderr.count("Traceback") == 1
    whole = prepare(text, out=tmp_path / "corpus", tokenizer="char", shard_size=0.002, quiet=True)
    assert whole.digest == prepare(text, out=tmp_path / "alone", tokenizer="char", shard_size=0.002, quiet=True).digest


def test_a_process_that_died_is_noticed_though_no_shard_fails() -> None:
    """A pool overlooks one that ends before the pool next hears of a task, and would wait for its shard forever."""
    process = get_context("spawn").Process(target=os._exit, args=(3,))
    process.start()
    process.join()
    waiting: Future[Shard] = Future()
    with pytest.raises(BrokenProcessPool):
        list(workers._ready({waiting: 0}, {}, {1: process}))


def test_a_process_needs_no_torch() -> None:
    """It starts in a moment, and takes little memory."""
    program = "import sys, qkv.tasks.prepare.workers; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_each_block_is_as_likely_in_the_sample() -> None:
    counts = np.zeros(40)
    for seed in range(2000):
        sample = Sample(1000, seed)
        for number in range(40):
            sample.offer(LineBlock(("a",), number + 1, number + 1, 1, (b"x" * 99 + b"\n",)))
        for block in sample.blocks():
            counts[block.line - 1] += 1
    assert counts.sum() == 20_000
    assert abs(counts - 500).max() < 5 * (2000 * 0.25 * 0.75) ** 0.5


def test_each_header_that_is_skipped_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = "".join(f"ein {n}\ta {n}\n" for n in range(40))
    files = [tmp_path / f"{n}.tsv" for n in range(3)]
    for file, header in zip(files, ["\ufeffSource\tTarget\r\n", "", "src\ttgt\n"], strict=True):
        file.write_text(header + rows)
    prepared(files, tmp_path / "out", pairs=True)
    said = [line for line in capsys.readouterr().err.splitlines() if "a header, skipped" in line]
    assert said == [
        f"qkv: {files[0]}:1: a header, skipped: Source Target",
        f"qkv: {files[2]}:1: a header, skipped: src tgt",
    ]


def test_a_header_in_the_middle_of_a_prepared_file_is_refused(tmp_path: Path) -> None:
    rows = "source\ttarget\n" + "".join(f"ein {n}\ta {n}\n" for n in range(40))
    (tmp_path / "pairs.tsv").write_text(rows + rows)
    with pytest.raises(DataError) as caught:
        prepared([tmp_path / "pairs.tsv"], tmp_path / "out", pairs=True)
    assert (caught.value.file, caught.value.line) == (str(tmp_path / "pairs.tsv"), 42)
