"""`qkv view` as a user runs it: a page in a file, a server that ends when interrupted, and what it refuses."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

pytestmark = pytest.mark.slow  # a model is trained first, and each command is a process of its own
QKV = Path(sys.executable).parent / "qkv"


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([QKV, *arguments], check=False, capture_output=True, text=True, encoding="utf-8", timeout=180)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("view")
    lines = "".join(f"{a}{b}\t{b}{a}\n" for a in "abcdefgh" for b in "abcdefgh")
    (folder / "pairs.tsv").write_text(lines, encoding="utf-8")
    small = ("--model", "gru", "--tokenizer", "char", "--steps", "2")
    done = run("train", "translate", "--data", folder / "pairs.tsv", "--out", folder / "run", *small)
    assert done.returncode == 0, done.stderr
    return folder / "run"


def test_one_page_that_needs_no_server(model: Path, tmp_path: Path) -> None:
    done = run("view", model, "--text", "ab", "--export", tmp_path / "ab.html")
    assert done.returncode == 0, done.stderr
    assert "answers" in done.stderr
    page = (tmp_path / "ab.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "api/tile?" in page


def test_the_address_opens_the_viewer_until_it_is_interrupted(model: Path) -> None:
    with subprocess.Popen(
        [QKV, "view", model, "--text", "ab", "--no-browser"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:")
        assert list(httpx.get(url + "api/scene").json()["sequences"]) == ["source", "target"]
        process.send_signal(signal.SIGINT)
        begun = time.monotonic()
        assert process.wait(60) == 130
        assert time.monotonic() - begun < 60


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["--text"]),
        (["--text", ""], ["--text"]),
        (["--file", "/none.txt"], ["/none.txt"]),
        (["--text", "ab", "--export", "ab.pdf"], ["--export", ".html"]),
        (["--text", "ab", "--port", "99999", "--no-browser"], ["port"]),
        (["--text", "ab" * 500], ["--text", "1000"]),
    ],
)
def test_bad_input_is_one_message(arguments: list[str], words: list[str], model: Path) -> None:
    done = run("view", model, *arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


def test_a_trace_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"no trace")
    done = run("view", tmp_path / "x.safetensors")
    assert done.returncode == 2
    assert "x.safetensors" in done.stderr
