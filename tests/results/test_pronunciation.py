"""Pronunciation from the plain TSV: one command trains, and single models and ensemble are scored."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from results.pronunciation import ROWS, SpokenRow, judge, run_row, section
from tests.cli.command import QKV, run

from qkv.data.corpus import Pair
from qkv.tasks.translate.predict import Translation
from results import pronunciation

SETTINGS = """
[data]
target_sep = " "
[model]
model = "gru"
embedding = 8
hidden = 8
attention = 8
[training]
steps = 3
batch_tokens = 256
warmup = 1
validate_every = 3
"""


def said(text: str) -> Translation:
    return Translation("c h a t", text, 0.0, True, ("c",), ("ʃ",))


def test_a_word_is_wrong_as_a_whole_and_phones_are_counted() -> None:
    pairs = [Pair("c h a t", "ʃ a", 1), Pair("m o i", "m w a", 2)]
    figures = judge([said("ʃ a"), said("m a")], pairs)
    assert figures == {"wrong": 50.0, "phone_errors": pytest.approx(20.0)}


def in_this_process(command: list[str], *, check: bool) -> SimpleNamespace:
    """Run the command without a process of its own, which would import everything again."""
    assert command[0] == str(QKV)
    assert not check
    return SimpleNamespace(returncode=run(*command[1:]).exit_code)


def test_a_row_trains_by_its_command_and_stands_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("results.usage.subprocess", SimpleNamespace(run=in_this_process))
    folder = tmp_path / "data" / "g2p_sigmorphon2021"
    folder.mkdir(parents=True)
    words = "".join(f"{a}{b}\t{a} {b}ː\n" for a in "maison" for b in "chatek")
    for part in ("train", "dev"):
        (folder / f"xxx_{part}.tsv").write_text(words, encoding="utf-8")
    row = SpokenRow("pronunciation_xxx", "Language", "xxx", "speech.toml", 4, 7.4, "9")
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "speech.toml").write_text(SETTINGS)
    monkeypatch.setattr("results.row.ROOT", tmp_path)
    monkeypatch.setattr(pronunciation, "ROWS", (row,))
    assert section() == "", "not run yet"
    run_row(row, tmp_path / "data", tmp_path / "run", train=True)
    record = json.loads(row.record.read_text(encoding="utf-8"))
    assert list(record["alone"]) == ["0-ahead", "1-ahead", "2-back", "3-back"]
    assert "--ensemble 4 --both-directions" in record["commands"][0]
    assert (row.kept / "metrics-2-back.jsonl").exists()
    page = section()
    assert f"**{record['ensemble']['wrong']:.2f}**" in page
    assert str(tmp_path) not in page, "no folder of this machine"


def test_every_language_has_settings() -> None:
    for row in ROWS:
        assert row.config.with_name(row.settings).exists()
        assert row.models % 2 == 0
    assert len({row.name for row in ROWS}) == len(ROWS)
