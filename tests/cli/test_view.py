"""`qkv view` as a user runs it: a page in a file, a server that ends when interrupted, and what it refuses."""

import signal
import subprocess
from pathlib import Path

import httpx
import pytest
from tests.cli.command import QKV, refused, run, succeeded
from tests.view.saved import answers


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
    assert answers(page)["api/scene"]["title"] == "run: ab"


def test_a_picture_of_one_head(tmp_path: Path) -> None:
    layer = "decoder.1.cross_attention.attention"
    files = [tmp_path / "mean.svg", tmp_path / "head.svg", tmp_path / "titled.pdf"]
    succeeded(run("view", "example", "--export", files[0], "--layer", layer))
    succeeded(run("view", "example", "--export", files[1], "--layer", layer, "--head", 2))
    succeeded(run("view", "example", "--export", files[2], "--layer", layer, "--head", 2, "--title", "One head"))
    assert files[0].read_bytes() != files[1].read_bytes()
    assert files[2].read_bytes().startswith(b"%PDF")
    refused(run("view", "example", "--export", files[0], "--layer", "decoder.7"), "layer", "decoder.0.self_attention")
    refused(run("view", "example", "--export", files[0], "--head", 9), "head", "0 to 3")
    refused(run("view", "example", "--export", tmp_path / "page.html", "--head", 1), "--layer", "picture")


def test_where_the_weights_of_each_head_lie() -> None:
    lines = succeeded(run("view", "example", "--heads")).stdout.splitlines()
    table = [dict(zip(lines[0].split("\t"), line.split("\t"), strict=True)) for line in lines[1:]]
    assert len(table) == 24
    crossing = [row for row in table if "cross" in row["layer"]]
    assert max(float(row["diagonal"]) for row in crossing) > 0.7
    assert all(row["previous"] == "" for row in crossing)


@pytest.mark.slow
def test_the_address_opens_the_viewer_until_it_is_interrupted(model: Path) -> None:
    with subprocess.Popen(
        [QKV, "view", model, "--text", "ab", "--no-browser"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert url.startswith("http://127.0.0.1:")
            with httpx.Client(base_url=url.partition("/enter/")[0], timeout=60) as browser:
                home = browser.get(url).text.partition("url=")[2].partition('"')[0]  # to which the cookie is bound
                scene = browser.get(f"{home}api/scene").json()
                assert [sequence["name"] for sequence in scene["sequences"]] == ["source", "target"]
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
        finally:
            process.kill()  # the block waits for it, also after a failure


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["--text"]),
        (["--text", ""], ["--text"]),
        (["--file", "/none.txt"], ["/none.txt"]),
        (["--file", "/dev/zero"], ["/dev/zero", "64 MiB"]),
        (["--text", "ab", "--export", "ab.gif"], ["--export", ".html"]),
        (["--text", "ab", "--port", "99999", "--no-browser"], ["port"]),
        (["--text", "ab" * 500], ["--text", "1000"]),
    ],
)
def test_bad_input_is_one_message(arguments: list[str], words: list[str], model: Path) -> None:
    refused(run("view", model, *arguments), *words)


def test_a_trace_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"no trace")
    refused(run("view", tmp_path / "x.safetensors"), "x.safetensors")
