"""Shards: each is answered once, whoever dies, and again if anything about it changed."""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.programs_in_forks import run_program

from qkv.errors import CheckpointError, ConfigError, DataError
from qkv.system import locked
from qkv.tasks.shards import ShardResult, Shards

WORK = {"command": "capitals", "beam": 1}


@pytest.fixture
def shards(tmp_path: Path) -> Shards:
    (tmp_path / "in").mkdir()
    for name in "abcd":
        (tmp_path / "in" / name).write_text(f"{name}\n{name}{name}\n")
    return Shards.of(str(tmp_path / "in" / "*"), tmp_path / "out")


def capitals(source: Path) -> Iterator[str]:
    yield from source.read_text().upper().splitlines(keepends=True)


def names(paths: list[Path]) -> str:
    return "".join(sorted(path.name for path in paths))


def answered(shards: Shards) -> ShardResult:
    done = shards.answer(WORK, capitals)
    assert not done.failed
    assert {path.name: path.read_text() for path in shards.out.iterdir() if path.is_file()} == {
        path.name: path.read_text().upper() for path in shards.sources
    }
    return done


def test_a_second_run_does_nothing_and_a_changed_shard_alone_is_answered_again(shards: Shards) -> None:
    assert names(answered(shards).answered) == "abcd"
    before = {path: path.stat().st_mtime_ns for path in shards.out.rglob("*") if path.suffix != ".lock"}
    assert names(answered(shards).complete) == "abcd"
    assert before == {path: path.stat().st_mtime_ns for path in before}
    shards.sources[1].write_text("new\n")
    assert names(answered(shards).answered) == "b"


@pytest.mark.parametrize("damage", ["lost", "edited", "without note", "with a damaged note", "with another note"])
def test_answers_that_their_note_does_not_describe_are_made_again(shards: Shards, damage: str) -> None:
    answered(shards)
    path, note = shards.out / "b", shards.out / ".shards" / "b.json"
    match damage:
        case "lost":
            path.unlink()
        case "edited":
            path.write_text("x\n")
        case "without note":
            path.unlink()
            note.unlink()
        case "with a damaged note":
            note.write_text("{")
        case "with another note":
            note.write_bytes((shards.out / ".shards" / "a.json").read_bytes())
    assert names(answered(shards).answered) == "b"


def test_a_shard_of_another_process_is_passed_over(shards: Shards) -> None:
    shards.answer(WORK, capitals)
    shards.sources[1].write_text("new\n")
    with locked(shards.out / ".shards" / "b.lock"):
        done = shards.answer(WORK, capitals)
    assert (names(done.busy), names(done.complete), done.answered) == ("b", "acd", [])


def test_a_shard_whose_process_dies_meanwhile_is_answered(shards: Shards) -> None:
    (shards.out / ".shards").mkdir(parents=True)
    with ExitStack() as other:
        for name in "abc":
            other.enter_context(locked(shards.out / ".shards" / f"{name}.lock"))

        def answer(source: Path) -> Iterator[str]:
            other.close()
            return capitals(source)

        done = shards.answer(WORK, answer)
    assert (names(done.answered), done.busy) == ("abcd", [])


def test_a_shard_that_fails_stops_no_other(shards: Shards) -> None:
    def answer(source: Path) -> Iterator[str]:
        if source.name in "bc":
            yield "half\n"
            raise DataError("line 2", "text", "none", "Write some.")
        yield from capitals(source)

    done = shards.answer(WORK, answer)
    assert names(done.answered) == "ad"
    assert sorted(str(error.argument) for error in done.failed) == [f"{shards.sources[n]}: line 2" for n in (1, 2)]
    assert sorted(path.name for path in shards.out.iterdir()) == [".shards", "a", "d"]
    assert names(answered(shards).answered) == "bc"


def test_a_shard_that_is_written_meanwhile_fails(shards: Shards) -> None:
    def answer(source: Path) -> Iterator[str]:
        yield from capitals(source)
        source.write_text(source.read_text() + "more\n")

    (error,) = Shards(shards.sources[:1], shards.out).answer(WORK, answer).failed
    assert error.argument == str(shards.sources[0])
    assert not (shards.out / "a").exists()


def test_another_model_or_setting_is_refused_by_name(shards: Shards) -> None:
    answered(shards)
    with pytest.raises(ConfigError) as caught:
        shards.answer({**WORK, "beam": 5}, capitals)
    assert (caught.value.argument, "beam" in caught.value.got, "command" in caught.value.got) == (
        f'out="{shards.out}"',
        True,
        False,
    )


def test_files_of_others_are_not_replaced(shards: Shards) -> None:
    sources = shards.sources[0].parent
    before = sorted(sources.rglob("*"))
    with pytest.raises(ConfigError, match="out"):
        Shards(shards.sources, sources).answer(WORK, capitals)
    assert sorted(sources.rglob("*")) == before
    shards.out.mkdir()
    (shards.out / "c").write_text("mine")
    with pytest.raises(ConfigError, match="out"):
        shards.answer(WORK, capitals)
    assert [path.name for path in shards.out.iterdir()] == ["c"]


def test_no_note_is_written_through_a_link(shards: Shards, tmp_path: Path) -> None:
    shards.out.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (shards.out / ".shards").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="a link"):
        shards.answer(WORK, capitals)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_two_shards_never_share_a_name(shards: Shards) -> None:
    folder = shards.sources[0].parent
    (folder / "a.gz").write_bytes(b"")
    with pytest.raises(ConfigError, match="same name"):
        Shards.of(str(folder / "*"), shards.out)
    (folder / "more").mkdir()
    (folder / "more" / "b").write_text("x\n")
    with pytest.raises(ConfigError, match="same name"):
        Shards.of(str(folder / "**" / "b"), shards.out)


@pytest.mark.parametrize("pattern", ["*.none", "", "in"])
def test_a_pattern_that_no_file_has_is_refused(shards: Shards, pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shards.out.parent)
    with pytest.raises(ConfigError) as caught:
        Shards.of(pattern, shards.out)
    assert pattern != "in" or os.path.join("in", "*") in caught.value.hint


@pytest.mark.parametrize(
    ("shards", "kills", "workers"), [(9, 3, [2]), pytest.param(30, 20, [1, 2, 4], marks=pytest.mark.slow)]
)
def test_killed_workers_leave_the_same_bytes(tmp_path: Path, shards: int, kills: int, workers: list[int]) -> None:
    """Workers that are killed at random system calls, beside one that is not."""

    done = run_program("tests.tasks.shards_killed", tmp_path, shards, kills, *workers)
    assert done.returncode == 0, done.stderr
    alone, *others = map(json.loads, done.stdout.splitlines())
    assert (alone["killed"], alone["others"]) == (0, [0, 0])
    assert len(others) == len(workers)
    for outcome in others:
        assert outcome["killed"] == kills
        assert set(outcome["others"]) == {0}
        assert outcome["sha256"] == alone["sha256"]
        assert outcome["leftovers"] == []
