"""What a user does, in a process that looks like one on another system.

`python -m tests.platforms.steps FOLDER SYSTEM...` writes FOLDER/SYSTEM/results.json: for each step what went wrong, or
"". Each system is a fork of one process, which has imported the libraries. Of `SYSTEM:STEP,STEP` only these steps.
"""

import io
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.platforms.emulated import become, import_libraries

PAIRS = [(f"{a}{b}", f"{b}{a}") for a in "abcdefgh" for b in "abcdefgh"]
SMALL = {"model": "gru", "tokenizer": "char", "width": 16, "quiet": True}
STEPS: dict[str, Callable[[], None]] = {}


def step(function: Callable[[], None]) -> Callable[[], None]:
    STEPS[function.__name__] = function
    return function


@step
def attention_is_what_the_equation_says_without_compiled_kernels() -> None:
    import torch

    import qkv

    query, key, value = (torch.randn(2, 4, 200, 16) for _ in range(3))
    query.requires_grad_()
    for score in (qkv.scores.Additive(torch.randn(16)), qkv.scores.Gaussian(2.0), qkv.scores.ScaledDot()):
        plan = qkv.explain(query, key, value, score=score)
        assert any("compiled kernels are built for Linux only" in why for _, why in plan.refusals), plan
        output, expected = (
            qkv.attention(query, key, value, score=score, backend=backend) for backend in ("auto", "reference")
        )
        torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-5)
        gradients = (torch.autograd.grad(each.sum(), query)[0] for each in (output, expected))
        torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-4)


@step
def training_ends_and_resumes() -> None:
    import qkv

    first = qkv.train("translate", data=PAIRS, out="run", steps=2, validate_every=1, keep=1, **SMALL)
    assert first.outcome.reason == "finished"
    again = qkv.train("translate", data=PAIRS, out="run", steps=6, validate_every=1, keep=1, **SMALL)
    assert again.outcome.reason == "finished"
    names = {path.name for path in Path("run").iterdir() if path.name.startswith("step-")}
    assert names == {"step-00000006", json.loads(Path("run/best").read_text("utf-8"))["checkpoint"]}
    lines = Path("run/metrics.jsonl").read_bytes()
    assert b"\r" not in lines
    assert [json.loads(line)["step"] for line in lines.splitlines() if b'"validation"' in line] == [1, 2, 3, 4, 5, 6]


@step
def a_checkpoint_that_somebody_reads_ends_no_training() -> None:
    import qkv

    settings = {"data": PAIRS, "out": "read", "validate_every": 1, "monitor": "exact_match", "keep": 1, **SMALL}
    qkv.train("translate", steps=2, **settings)
    with Path("read/step-00000002/config.json").open("rb"):
        qkv.train("translate", steps=3, **settings)
    assert qkv.train("translate", steps=4, **settings).outcome.reason == "finished"
    best = json.loads(Path("read/best").read_text("utf-8"))["checkpoint"]
    assert {path.name for path in Path("read").glob("step-*")} == {"step-00000004", best}


@step
def a_run_in_use_is_refused() -> None:
    import qkv
    from qkv.checkpoint.run import locked

    with locked(Path("run")), pytest.raises(qkv.errors.CheckpointError, match="in use"):
        qkv.train("translate", data=PAIRS, out="run", steps=6, validate_every=1, keep=1, **SMALL)


@step
def a_model_is_loaded_and_translates() -> None:
    import qkv

    model = qkv.load("run", task="translate")
    texts = model.translate(["ab", "cd"])
    assert len(texts) == 2
    assert texts == qkv.load("run", task="translate").translate(["ab", "cd"])


@step
def a_model_is_written_for_transformers() -> None:
    import qkv

    Path("neox").mkdir()  # an empty folder may be there
    arguments = {"text": ["who goes there?"] * 40, "width": 16, "heads": 2, "layers": 1, "context": 8, "quiet": True}
    model = qkv.train("generate", out="plays", steps=1, **arguments).load()
    qkv.hub.save(model, "neox")
    assert qkv.load("neox").generate(["who"], tokens=2) is not None


@step
def a_recording_is_saved_and_read() -> None:
    import torch

    import qkv

    model = qkv.nn.MultiHeadAttention(32, 4)
    with qkv.record(model) as trace:
        model(torch.randn(1, 5, 32))
    for name in ("trace.safetensors", "trace.html", "trace.svg", "trace.png"):
        trace.save(name)
        trace.save(name)
    again = qkv.recording.read("trace.safetensors")
    assert torch.equal(again.weights("attention"), trace.weights("attention"))
    page = Path("trace.html").read_bytes()
    assert page.startswith(b"<!doctype html>")
    assert Path("trace.png").read_bytes().startswith(b"\x89PNG\r\n")


@step
def the_viewer_answers_a_browser() -> None:
    import http.client

    import qkv

    trace = qkv.recording.read("trace.safetensors")
    with trace.show(browser=False) as serving:
        page = serving.redirect_file()
        assert serving.one_time_url().startswith("http://127.0.0.1:")
        one_time_url = page.read_text("utf-8").partition("url=")[2].partition('"')[0]
        connection = http.client.HTTPConnection("127.0.0.1", serving.port, timeout=30)
        connection.request("GET", one_time_url.partition(str(serving.port))[2])
        answer = connection.getresponse()
        assert answer.status == 200
        answer.read()
        cookie, *_, home = str(answer.headers["set-cookie"]).split("; ")
        connection.request("GET", f"{home.removeprefix('Path=')}api/scene", headers={"Cookie": cookie})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        assert json.loads(answer.read())["layers"]
        connection.close()
    assert not page.exists()


@step
def links_pipes_and_other_folders_are_refused() -> None:
    from qkv.checkpoint.disk import FolderReader
    from qkv.errors import CheckpointError

    folder = Path("held")
    folder.mkdir()
    folder.joinpath("real").write_bytes(b"x")
    folder.joinpath("link").symlink_to("real")
    os.system(f"mkfifo {folder}/pipe")
    with FolderReader(folder) as reader:
        assert reader.read("real", 10) == b"x"
        for name in ("link", "pipe", "..", "C:real", "a\\b", "none"):
            with pytest.raises(CheckpointError):
                reader.read(name, 10)


def command(*arguments: str, feed: str = "") -> str:
    """Run the command line in this process; its streams are pipes in the system's code page."""
    from qkv.cli.main import main

    before = sys.stdin, sys.stdout, sys.stderr, sys.argv
    streams = [io.TextIOWrapper(io.BytesIO(text), encoding="cp1252") for text in (feed.encode(), b"", b"")]
    try:
        sys.stdin, sys.stdout, sys.stderr = streams
        sys.argv = ["qkv", *arguments]
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = int(ended.code or 0)
        texts = []
        for stream in streams[1:]:
            stream.flush()
            texts.append(stream.buffer.getvalue())  # type: ignore[attr-defined]
    finally:
        sys.stdin, sys.stdout, sys.stderr, sys.argv = before
    assert code == 0, texts
    return str(texts[0].decode())


@step
def the_command_line_trains_translates_and_shows() -> None:
    Path("pairs.tsv").write_bytes("".join(f"{a}é\t→{b}\r\n" for a, b in PAIRS).encode())
    small = ("--model", "gru", "--tokenizer", "char", "--width", "16", "--steps", "2", "--quiet")
    command("train", "translate", "--data", "pairs.tsv", "--out", "typed", *small)
    command("train", "translate", "--data", "pairs.tsv", "--out", "typed", *small)
    lines = command("translate", "typed", "--quiet", feed="abé\r\ncdé\r\n")
    assert lines.count("\n") == 2
    assert "\r" not in lines
    command("view", "typed", "--text", "abé", "--export", "view.html", "--quiet")
    assert Path("view.html").read_bytes().startswith(b"<!doctype html>")
    assert "additive" in command("explain", "--score", "additive", "--queries", "500", "--keys", "500")


def main(system: str, folder: Path, names: Sequence[str]) -> None:
    folder.mkdir()
    become(system)
    os.chdir(folder)
    from tests.curves import one_of_each_kind  # which imports qkv

    results = {}
    with one_of_each_kind():
        for name in names:
            try:
                STEPS[name]()
            except BaseException:
                results[name] = traceback.format_exc()
            else:
                results[name] = ""
    Path("results.json").write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    import_libraries()
    for argument in sys.argv[2:]:
        system, _, steps = argument.partition(":")
        child = os.fork()
        if child == 0:
            main(system, Path(sys.argv[1], system), steps.split(",") if steps else list(STEPS))
            sys.exit()
        os.waitpid(child, 0)
