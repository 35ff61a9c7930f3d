"""`qkv view` as a user runs it: a page in a file, a server that ends when interrupted, and what it refuses."""

import signal
import subprocess
from pathlib import Path

import httpx
import pytest
from tests.cli.command import QKV, refused, run, succeeded


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("view")
    lines = "".join(f"{a}{b}\t{b}{a}\n" for a in "abcdefgh" for b in "abcdefgh")
    (folder / "pairs.tsv").write_text(lines, encoding="utf-8")
    small = ("--model", "gru", "--width", "16", "--tokenizer", "char", "--steps", "2")
    succeeded(run("train", "translate", "--data", folder / "pairs.tsv", "--out", folder / "run", *small))
    return folder / "run"


def test_one_page_that_needs_no_server(model: Path, tmp_path: Path) -> None:
    done = succeeded(run("view", model, "--text", "ab", "--export", tmp_path / "ab.html"))
    assert "for any browser" in done.stderr
    page = (tmp_path / "ab.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert '"packed":"' in page


@pytest.mark.slow
def test_the_address_opens_the_viewer_until_it_is_interrupted(model: Path) -> None:
    with subprocess.Popen(
        [QKV, "view", model, "--text", "ab", "--no-browser"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:")
        with httpx.Client(base_url=url.partition("/enter/")[0]) as browser:
            assert browser.get(url).status_code == 200
            assert list(browser.get("/api/scene").json()["sequences"]) == ["source", "target"]
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["--text"]),
        (["--text", ""], ["--text"]),
        (["--file", "/none.txt"], ["/none.txt"]),
        (["--file", "/dev/zero"], ["/dev/zero", "64 MiB"]),
        (["--text", "ab", "--export", "ab.pdf"], ["--export", ".html"]),
        (["--text", "ab", "--port", "99999", "--no-browser"], ["port"]),
        (["--text", "ab" * 500], ["--text", "1000"]),
    ],
)
def test_bad_input_is_one_message(arguments: list[str], words: list[str], model: Path) -> None:
    refused(run("view", model, *arguments), *words)


def test_a_trace_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"no trace")
    refused(run("view", tmp_path / "x.safetensors"), "x.safetensors")
