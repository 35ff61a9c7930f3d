"""`qkv align` as a user runs it: links, their error rate, and inputs that do not match."""

import base64
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.cli.command import refused, run, succeeded
from tests.fuzz.models import families

from qkv.checkpoint.folder import save
from qkv.metrics.figure import Figure
from qkv.tasks.translate.alignment_reading import AGREEMENT, AlignmentReading

LAYER = "decoder.0.cross_attention.attention"
SOURCE, TARGET = "the cat sat\na dog ran to the cat .\n", "mat the cat\nthe dog sat\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("align")
    torch.manual_seed(0)
    for name in ("gru", "transformer"):
        save(folder / name, families()[name])
    chosen = Figure(AGREEMENT, 91.0, AlignmentReading(LAYER, 1).signature)
    save(folder / "chosen", replace(families()["transformer"], figures=(chosen,)))
    for name, text in (("a", SOURCE), ("b", TARGET), ("gold", "0-0 1-2\n0-0\n")):
        (folder / name).write_text(text)
    return folder


def files(folder: Path, prefix: str = "--") -> list[str | Path]:
    return [f"{prefix}source", folder / "a", f"{prefix}target", folder / "b"]


@pytest.mark.parametrize("name", ["gru", "transformer"])
def test_each_target_word_has_a_link(folder: Path, name: str) -> None:
    done = succeeded(run("align", folder / name, *files(folder), "--gold", folder / "gold"))
    for line, source, target in zip(done.stdout.splitlines(), SOURCE.splitlines(), TARGET.splitlines(), strict=True):
        links = [tuple(map(int, link.split("-"))) for link in line.split()]
        assert sorted(j for _, j in links) == list(range(len(target.split())))
        assert all(0 <= i < len(source.split()) for i, _ in links)
    assert "by default" in done.stderr
    assert "alignment_error_rate" in done.stderr


def test_a_table_is_aligned_as_two_files_are(folder: Path) -> None:
    rows = zip(SOURCE.splitlines(), TARGET.splitlines(), strict=True)
    (folder / "pairs.csv").write_text("id;target;1\n" + "".join(f"7;{target};{source}\n" for source, target in rows))
    columns = ["--source-col", "1", "--target-col", "target"]
    links = succeeded(run("align", folder / "gru", "--data", folder / "pairs.csv", *columns)).stdout
    assert links == succeeded(run("align", folder / "gru", *files(folder))).stdout
    refused(run("align", folder / "gru", "--data", folder / "pairs.csv", "--target-col", "4"), "--target-col")
    stored = families()["gru"]
    save(folder / "columns", replace(stored, config={**stored.config, "data": {"source_col": "1", "target_col": "4"}}))
    of_training = run("align", folder / "columns", "--data", folder / "pairs.csv")
    refused(of_training, "--target-col: expected", '"4"', "It is as in training")
    done = succeeded(run("align", folder / "columns", "--data", folder / "pairs.csv", "--target-col", "target"))
    assert done.stdout == links
    assert "columns as in training: --source-col 1\n" in done.stderr


def test_links_as_json_by_a_layer_of_ones_own(folder: Path) -> None:
    reading = ["--layer", "decoder.0.cross_attention.attention", "--head", "1", "--when", "after"]
    done = succeeded(run("align", folder / "transformer", *files(folder), *reading, "--json"))
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["target"] for row in rows] == [line.split() for line in TARGET.splitlines()]
    assert done.stderr == "read from decoder.0.cross_attention.attention, head 1, after the step: as asked\n"


@pytest.mark.parametrize(
    ("more", "read"),
    [
        (["--when", "after"], "decoder.0.cross_attention.attention, head 1, after the step: as asked"),
        (["--head", "0"], "decoder.0.cross_attention.attention, head 0, at the step: as asked"),
        (["--layer", LAYER], "decoder.0.cross_attention.attention, mean of heads, at the step: as asked"),
        ([], "decoder.0.cross_attention.attention, head 1, at the step: as chosen in training"),
    ],
)
def test_what_is_not_given_is_read_as_training_chose(folder: Path, more: list[str], read: str) -> None:
    done = succeeded(run("align", folder / "chosen", *files(folder), *more))
    assert done.stderr == f"read from {read}\n"


def test_two_directions_agree_on_fewer_links(folder: Path) -> None:
    both = ["--reverse", folder / "gru", "--symmetrize"]
    met = succeeded(run("align", folder / "transformer", *files(folder), *both, "intersection")).stdout
    all_of_them = succeeded(run("align", folder / "transformer", *files(folder), *both, "union")).stdout
    for few, many in zip(met.splitlines(), all_of_them.splitlines(), strict=True):
        assert set(few.split()) <= set(many.split())
    agreed = succeeded(run("align", folder / "transformer", *files(folder), "--reverse", folder / "gru")).stdout
    assert agreed == succeeded(run("align", folder / "transformer", *files(folder), *both, "mutual")).stdout
    for line in agreed.splitlines():
        links = [link.split("-") for link in line.split()]
        assert all(len(set(words)) == len(links) for words in zip(*links, strict=True)), "one link of each word at most"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--head", "1"], ["--head: expected from 0 to 0"]),
        (["--when", "after", "--valid-source", "a"], ["--when: expected no --valid-source"]),
        (["--head", "0", "--valid-source", "a"], ["--head: expected no --valid-source"]),
        (["--layer", "attention", "--when", "att"], ['Did you mean "at"?']),
        (["--layer", "atention"], ['Did you mean "attention"?']),
        (["--symmetrize", "grow"], ["--symmetrize", "grow-diagonal"]),
        (["--layer", "attention", "--valid-source", "a"], ["--layer: expected no --valid-source"]),
        (["--valid-source", "a"], ["--valid-source", "--valid-target"]),
        (["--gold", "none"], ["none"]),
    ],
)
def test_what_does_not_belong_together(folder: Path, more: list[str], words: list[str]) -> None:
    refused(run("align", folder / "gru", *files(folder), *more), *words)


def test_weights_are_drawn(folder: Path, tmp_path: Path) -> None:
    """The page holds the words of both sides and the weights that the links were read from."""
    page = tmp_path / "links.html"
    done = succeeded(run("align", folder / "transformer", *files(folder), "--attention", page))
    data = json.loads(re.search(r'id="data">(.*?)</script>', page.read_text(), re.DOTALL)[1])
    for line, sentence in zip(done.stdout.splitlines(), data["sentences"], strict=True):
        shape = len(sentence["target"]), len(sentence["source"])
        weights = torch.frombuffer(bytearray(base64.b64decode(sentence["weights"])), dtype=torch.float32).view(shape)
        assert {tuple(map(int, link.split("-"))) for link in line.split()} == {
            (int(row.argmax()), at) for at, row in enumerate(weights)
        }
    refused(run("align", folder / "transformer", *files(folder), "--attention", "links.doc"), "--attention", ".pdf")
