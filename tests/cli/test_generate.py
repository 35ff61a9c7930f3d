"""Language models from the command line: what it prints, and its messages about bad input."""

import json
from pathlib import Path

import pytest
from tests.cli.command import process, refused, run, succeeded

SMALL = ["--steps", "4", "--width", "8", "--heads", "2", "--layers", "1", "--context", "8"]
VERSE = "the cat sat on the mat.\n" * 40


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "verse.txt"
    path.write_text(VERSE, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def trained(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "verse"
    done = succeeded(run("train", "generate", "--text", text, "--out", out, *SMALL))
    assert "step 4: loss" in done.stderr
    return out


@pytest.mark.slow
def test_text_appears_on_standard_output_alone(trained: Path) -> None:
    done = process("generate", trained, "--prompt", "the c", "--tokens", "20", "--seed", "1")
    assert done.returncode == 0, done.stderr
    text = done.stdout.decode()
    assert text.startswith("the c")
    assert len(text) == 5 + 20 + 1
    assert done.stderr == b""


@pytest.mark.parametrize("beam", [1, 2])
def test_the_prompt_stands_once_before_the_text_and_json_has_both_by_name(trained: Path, beam: int) -> None:
    given = ["generate", trained, "--prompt", "the c", "--tokens", "3", "--beam", str(beam), "--quiet"]
    text = succeeded(run(*given)).stdout
    (record,) = [json.loads(line) for line in succeeded(run(*given, "--json")).stdout.splitlines()]
    assert record == {"prompt": "the c", "text": text.removeprefix("the c").removesuffix("\n"), "seed": 0}
    assert len(record["text"]) == 3


def test_evaluate_prints_figures_with_signatures(trained: Path, text: Path) -> None:
    done = succeeded(run("evaluate", trained, "--text", text))
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == ["loss", "perplexity", "bits_per_character"]
    assert rows[0][2] == "nats per token, context:8"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--prompt", "the cat sat"], ["prompt", "at most 8 tokens", "--long-prompt window"]),
        (["--prompt", "ß"], ["characters of the training text", "'ß'"]),
        (["--prompt", ""], ["at least one token"]),
        (["--temperature", "-1"], ["temperature", "0 or more"]),
        (["--top-k", "0"], ["--top-k", "at least 1"]),
        (["--top-p", "2"], ["--top-p"]),
        (["--tokens", "0"], ["tokens", "at least 1"]),
        (["--long-prompt", "windw"], ["--long-prompt", '"window"']),
        (["--tempature", "1"], ["--tempature", "--temperature"]),
    ],
)
def test_what_cannot_be_generated(trained: Path, arguments: list[str], words: list[str]) -> None:
    refused(run("generate", trained, *arguments), *words)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["text.txt", "an empty file"]),
        (b"\n\n", ["text.txt", "empty lines only"]),
        (b"\x89PNG\r\n\x1a\n\x00\x00", ["text.txt:1", "UTF-8"]),
        (b"abc\0def\n", ["text.txt:1", "NUL"]),
        (b"too short\n", ["one window of the context", "--context"]),
    ],
)
def test_files_that_are_no_text(content: bytes, words: list[str], tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    refused(run("train", "generate", "--text", path, "--out", tmp_path / "out", *SMALL), *words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--tokenizer", "charr"], ["--tokenizer", '"char"']),
        (["--positions", "rotery"], ["--positions", '"rotary"']),
        (["--heads", "3"], ["--heads", "a divisor"]),
        (["--contex", "9"], ["--contex", "--context"]),
        (["--from", "/nowhere"], ["/nowhere", "no such folder"]),
    ],
)
def test_unknown_names_give_the_nearest(text: Path, tmp_path: Path, arguments: list[str], words: list[str]) -> None:
    refused(run("train", "generate", "--text", text, "--out", tmp_path / "out", *SMALL, *arguments), *words)


def test_no_text_at_all(tmp_path: Path) -> None:
    refused(run("train", "generate", "--out", tmp_path / "out"), "--text")


def test_another_context_than_the_run_has(trained: Path, text: Path) -> None:
    done = run("train", "generate", "--text", text, "--out", trained, *SMALL[:-1], "9")
    refused(done, "--context", "9 (it was 8)")


def test_fine_tuning_takes_the_sizes_of_its_start(trained: Path, text: Path, tmp_path: Path) -> None:
    start = ["train", "generate", "--text", text, "--from", trained, "--steps", "2"]
    succeeded(run(*start, "--out", tmp_path / "tuned"))
    refused(run(*start, "--out", tmp_path / "wide", "--width", "16"), "--from", "embed.weight of shape")


def test_a_language_model_is_scored_on_text(trained: Path, text: Path) -> None:
    refused(run("evaluate", trained), "--text", "plain text")
    refused(run("evaluate", trained, "--data", text), "No such option: --data")


def test_a_language_model_does_not_translate(trained: Path) -> None:
    refused(run("translate", trained), "trained to generate")
