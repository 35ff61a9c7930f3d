"""Short text rows: their scores, their training data, and what the page says."""

import json
from pathlib import Path

import pytest
import torch
from results.transduction import ROWS, ShortRow, judge
from results.transduction_data import Parts, reverse_parts, scan_parts, write

from qkv.data.corpus import Pair, read_tsv
from qkv.tasks.translate.predict import Translation
from results import transduction_page


def _found(text: str, finished: bool = True) -> Translation:
    return Translation("", text, 0.0, finished, (), (), torch.empty(0))


def _pairs(*targets: str) -> list[Pair]:
    return [Pair("", target, line) for line, target in enumerate(targets, start=1)]


def test_a_text_is_right_as_a_whole_or_wrong() -> None:
    figures = judge([_found("abcd"), _found("abxd"), _found("abcde"), _found("ab")], _pairs(*["abcd"] * 4))
    assert figures["exact"] == 25


def test_symbols_count_at_their_places_and_by_edits() -> None:
    figures = judge([_found("ab"), _found("xabcd")], _pairs("abcd", "abcd"))
    assert figures["symbols_in_place"] == 25  # "ab" of the first; the second is one place too late throughout
    assert figures["symbol_errors"] == 100 * 3 / 8


def test_phones_are_what_spaces_divide() -> None:
    figures = judge([_found("aː p")], _pairs("aː b"), str.split)
    assert figures["symbol_errors"] == figures["symbols_in_place"] == 50


def test_texts_cut_off_at_the_limit_are_counted() -> None:
    assert judge([_found("ab", finished=False), _found("ab")], _pairs("ab", "ab"))["unfinished"] == 1


def test_no_sequence_to_reverse_is_in_two_parts() -> None:
    parts = reverse_parts()
    train, valid, test = ({pair.source for pair in part} for part in parts)
    assert not train & valid
    assert not train & test
    assert not valid & test
    assert max(map(len, train)) == 25
    assert max(map(len, test)) == 30


def test_actions_are_written_as_letters_and_a_turn_with_what_follows_is_one_word(tmp_path: Path) -> None:
    commands = [
        f"IN: walk {side} {often} OUT: I_TURN_LEFT I_TURN_LEFT I_WALK I_WALK"
        for side in range(30)
        for often in range(30)
    ]
    for part in ("train", "test"):
        (tmp_path / f"tasks_{part}_simple.txt").write_text("\n".join(commands) + "\n", encoding="utf-8")
    parts = scan_parts(tmp_path, "simple")
    assert {pair.target for pair in parts.test} == {"L LW W"}
    assert len(parts.train) + len(parts.valid) == len(commands)


def test_written_parts_are_read_as_they_were(tmp_path: Path) -> None:
    pairs = [Pair("a b", "ɒ bː", 1), Pair("c", "t͡s", 2)]
    write(pairs, tmp_path / "new" / "train.tsv")
    assert read_tsv(tmp_path / "new" / "train.tsv") == pairs


def test_every_row_has_its_settings() -> None:
    assert [row.name for row in ROWS if not row.config.exists()] == []


def test_a_row_that_was_not_run_is_shown_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ShortRow, "kept", property(lambda row: tmp_path / row.name))
    assert transduction_page.section().count("| not run |") == len(ROWS)


def test_the_page_shows_the_figures_of_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = ShortRow("words", "Words", "7.4", "a paper", "9", lambda data: Parts((), (), ()))
    monkeypatch.setattr(ShortRow, "kept", property(lambda row: tmp_path))
    monkeypatch.setattr(transduction_page, "ROWS", (row,))
    record = {
        "figures": judge([_found("a"), _found("b"), _found("c")], _pairs("a", "b", "d")),
        "usage": {"wall_seconds": 600, "processor_seconds": 90, "load": [1, 2, 3], "cores": 2, "threads": 1},
        "decoding_seconds": 1.0,
        "parameters": 1_200_000,
        "commands": ["qkv train translate"],
        "machine": "2 cores",
    }
    row.record.write_text(json.dumps(record), encoding="utf-8")
    (tmp_path / "words.toml").write_text("", encoding="utf-8")
    (tmp_path / "metrics.jsonl").write_text("", encoding="utf-8")
    monkeypatch.setattr(ShortRow, "config", property(lambda row: tmp_path / "words.toml"))
    page = transduction_page.section()
    assert "| **66.67** | 9 | 66.67 % of symbols correct by position, BLEU " in page
    assert "| 1.2 M | 1.5 min | 10 min (2 on 2 cores) |" in page


def test_a_run_that_began_with_another_schedule_is_shown_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ShortRow, "kept", property(lambda row: tmp_path))
    monkeypatch.setattr(ShortRow, "config", property(lambda row: tmp_path / "short.toml"))
    (tmp_path / "short.toml").write_text(
        '[training]\nsteps = 40\nwarmup = 0\nschedule = "linear"\nlearning_rate = 1.0\n'
    )
    log = [{"step": step, "kind": "train", "learning_rate": 1 - step / 81} for step in (10, 20)]
    log += [{"step": 20, "kind": "validation"}, {"step": 30, "kind": "train", "learning_rate": 1 - 30 / 41}]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in log))
    assert ["up to update 20 " in note for note in transduction_page._resumed(ROWS[0])] == [True]
    (tmp_path / "metrics.jsonl").write_text(f"{json.dumps(log[-1])}\n")
    assert transduction_page._resumed(ROWS[0]) == []
