"""Translation rows: which tokens are counted, what is decoded, what the page says."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from results.rows import ROWS
from results.scoring import Words, score, words
from results.translation import _commands, _joining, _shown, _write_either_way, decoded

from qkv.data.corpus import Pair
from qkv.tasks.translate.decoding import Decoding
from qkv.tasks.translate.predict import Translator
from results import rows, table


class _Parrot:
    """A model that copies its input; with a beam it adds a word."""

    def translate(self, lines: Sequence[str], how: Decoding) -> list[str]:
        return [line if how.beam == 1 else f"{line} again" for line in lines]


def _row(name: str) -> rows.Row:
    return next(row for row in ROWS if row.name == name)


@pytest.mark.parametrize("kind", [pytest.param("spacy", marks=pytest.mark.slow), "moses"])
def test_words_are_lower_cased_and_marks_stand_alone(kind: Words) -> None:
    line = 'Ein Mann ruft: "Los, Hund!"'
    assert words([line], "de", kind) == [["ein", "mann", "ruft", ":", '"', "los", ",", "hund", "!", '"']]


def test_moses_normalizes_marks_and_escapes_nothing() -> None:
    assert words(["„Ja“ & <nein>"], "de", "moses") == [['"', "ja", '"', "&", "<", "nein", ">"]]


def test_case_counts_in_sacrebleu_alone() -> None:
    alike, cased = score(["EIN HUND LÄUFT ÜBER DIE WIESE."], ["Ein Hund läuft über die Wiese."], "de", "moses")
    assert alike.value == 100
    assert "tok:moses" in alike.signature
    assert cased.value < 100


def test_a_row_is_decoded_by_the_beam_it_names() -> None:
    pairs = [Pair("Ein Hund läuft über die Wiese.", "Ein Hund läuft über die Wiese.", 1)]
    translator = cast("Translator", _Parrot())
    greedy, beam = (decoded(translator, pairs, _row("multi30k_en_de"), width) for width in (1, 5))
    assert greedy["figures"]["bleu"]["value"] == pytest.approx(100)
    assert beam["figures"]["bleu"]["value"] < 100


def test_the_page_shows_another_decoding_beside_the_rivals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("results.row.ROOT", tmp_path)
    kept = {"tokenized_bleu": {"value": 31.25, "signature": "one"}, "bleu": {"value": 30.5, "signature": "two"}}
    also = {name: {**figure, "value": figure["value"] + 1} for name, figure in kept.items()}
    record = {
        "figures": kept,
        "also": {"beam": 5, "figures": also},
        "usage": {"wall_seconds": 600, "processor_seconds": 1200, "threads": 2, "load": [1, 2, 3], "cores": 2},
        "training_seconds": 590.0,
        "decoding_seconds": 2.0,
        "parameters": 3_500_000,
        "commands": ["qkv train translate"],
        "machine": "a machine",
    }
    row = _row("multi30k_transformer")
    row.record.parent.mkdir(parents=True)
    row.record.write_text(json.dumps(record), encoding="utf-8")
    table.write_table(tmp_path / "results.md")
    page = (tmp_path / "results.md").read_text(encoding="utf-8")
    assert "| **31.25** | 37 | 30.50 | 3.5 M | 10 min | 2.0 s |" in page
    assert "- with a beam of 5: 32.25, sacreBLEU 31.50\n" in page
    assert "20 min of processor time on 2 threads" in page
    assert "| Multi30k En→De, Transformer, beam of 5 | 41.02" in page


def test_a_row_may_go_on_from_its_own_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("results.row.ROOT", tmp_path)
    row = replace(_row("multi30k_en_de"), length_penalty=1.4, note="It goes on.")
    for name in ("multi30k_en_de", "multi30k_en_de_then"):
        (tmp_path / "results").mkdir(exist_ok=True)
        (tmp_path / "results" / f"{name}.toml").write_text("", encoding="utf-8")
    commands = _commands(row, Path("data"), [Path("runs/one"), Path("runs/two")])
    assert [command[command.index("--out") + 1] for command in commands] == ["runs/one", "runs/two"]
    assert ["--from" in command for command in commands] == [False, True]
    assert commands[1][commands[1].index("--from") + 1] == "runs/one"
    figure = {name: {"value": 40.0, "signature": "one"} for name in ("tokenized_bleu", "bleu")}
    record = {"figures": figure, "training_seconds": 60.0, "decoding_seconds": 1.0, "parameters": 1, "machine": "any"}
    row.record.parent.mkdir(parents=True)
    row.record.write_text(json.dumps(record | {"commands": ["first", "second"]}), encoding="utf-8")
    page = table._details(row)
    assert "  - `first`\n  - `second`\n" in page
    assert "multi30k_en_de.toml), then [`results/multi30k_en_de_then.toml`]" in page
    assert "metrics-then.jsonl" in page
    assert "loss-then.png" in page
    assert "length penalty 1.4, chosen on validation data\n- It goes on.\n" in page


def test_a_first_training_may_learn_both_directions(tmp_path: Path) -> None:
    row, folder, run = (
        replace(_row("multi30k_en_de"), either_way=True),
        tmp_path / "multi30k",
        tmp_path / "runs" / "one",
    )
    folder.mkdir()
    for language, text in (("en", "A dog.\n"), ("de", "Ein Hund.\n")):
        (folder / f"train.{language}").write_text(text, encoding="utf-8")
    _write_either_way(row, folder, run)
    first, second = _commands(row, folder, [run, run.with_name("two")])
    source, target = (Path(first[first.index(flag) + 1]) for flag in ("--source", "--target"))
    assert source.read_text(encoding="utf-8") == "A dog.\nEin Hund.\n"
    assert target.read_text(encoding="utf-8") == "Ein Hund.\nA dog.\n"
    assert second[second.index("--source") + 1] == str(folder / "train.en")
    shown = [" ".join(_shown(part, [run]) for part in command) for command in _joining(row, folder, run)]
    assert shown[0] == "cat multi30k/train.en multi30k/train.de > runs/one.source"
