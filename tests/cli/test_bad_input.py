"""What the command does with bad input: exit code 2 and one message that names the problem and the fix."""

import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from click.testing import Result
from tests.cli.command import QKV, refused, run, succeeded

SMALL = ["--model", "gru", "--width", "16", "--tokenizer", "char", "--steps", "4"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    lines = [f"{first}{second}" for first in "abcdefgh" for second in "abcdefgh"]
    (folder / "a.txt").write_text("".join(f"{line}\n" for line in lines))
    (folder / "b.txt").write_text("".join(f"{line[::-1]}\n" for line in lines))
    return folder


@pytest.fixture(scope="module")
def trained(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "small"
    succeeded(run("train", "translate", *parallel(corpus), "--out", out, *SMALL))
    return out


@pytest.fixture
def run_folder(trained: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "run"
    shutil.copytree(trained, copy)
    return copy


def parallel(corpus: Path) -> list[str | Path]:
    return ["--source", corpus / "a.txt", "--target", corpus / "b.txt"]


def train(tmp_path: Path, *arguments: str | Path) -> Result:
    return run("train", "translate", *arguments, "--out", tmp_path / "out", *SMALL)


def test_files_of_different_length(corpus: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text("a\nb\n")
    refused(train(tmp_path, "--source", corpus / "a.txt", "--target", short), "64", "2", "short.txt")


def test_empty_file(corpus: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.touch()
    refused(train(tmp_path, "--source", empty, "--target", corpus / "b.txt"), "empty.txt")


def test_invalid_utf8(corpus: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.txt"
    broken.write_bytes((corpus / "a.txt").read_bytes().replace(b"ab\n", b"\xff\n", 1))
    refused(train(tmp_path, "--source", broken, "--target", corpus / "b.txt"), "broken.txt:2", "UTF-8")


def test_tsv_line_with_three_columns(tmp_path: Path) -> None:
    table = tmp_path / "pairs.tsv"
    table.write_text("a\tb\nc\td\te\n")
    refused(train(tmp_path, "--data", table), "pairs.tsv:2", "3")


def test_missing_file(corpus: Path, tmp_path: Path) -> None:
    refused(train(tmp_path, "--source", tmp_path / "none.txt", "--target", corpus / "b.txt"), "none.txt")


def test_no_files_at_all(tmp_path: Path) -> None:
    refused(train(tmp_path), "--source")


def test_line_longer_than_the_limit(corpus: Path, tmp_path: Path) -> None:
    done = train(tmp_path, *parallel(corpus), "--longest", "1")
    refused(done, "a.txt:", "at most 1 tokens", "--longest 2")


def test_run_folder_of_another_configuration(run_folder: Path, corpus: Path) -> None:
    before = sorted(path.name for path in run_folder.rglob("*"))
    done = run("train", "translate", *parallel(corpus), "--out", run_folder, *SMALL, "--learning-rate", "0.5")
    refused(done, "--learning-rate", "0.5", "--out")
    assert sorted(path.name for path in run_folder.rglob("*")) == before, "nothing is lost"


def test_unwritable_folder(corpus: Path) -> None:
    done = run("train", "translate", *parallel(corpus), "--out", "/proc/qkv/run", *SMALL)
    refused(done, "/proc/qkv/run")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--sorce", "x"], ["--sorce", "--source"]),
        (["--model", "gur"], ["--model", "gur", '"gru"']),
        (["--score", "aditive"], ["--score", "aditive", '"additive"']),
        (["--tokenizer", "chars"], ["--tokenizer", '"char"']),
    ],
)
def test_unknown_name_on_the_command_line(arguments: list[str], words: list[str], corpus: Path, tmp_path: Path) -> None:
    refused(run("train", "translate", *parallel(corpus), "--out", tmp_path / "out", *arguments), *words)


def test_unknown_key_in_toml(corpus: Path, tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text("[training]\nlerning_rate = 0.1\n")
    refused(train(tmp_path, *parallel(corpus), "--config", config), "training.lerning_rate", '"learning_rate"')


def test_toml_with_an_error(corpus: Path, tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text("[training\n")
    refused(train(tmp_path, *parallel(corpus), "--config", config), "run.toml", "line 1")


def test_unknown_command_names_the_nearest() -> None:
    refused(run("trian"), "trian", "train")


def test_checkpoint_with_a_missing_file(run_folder: Path) -> None:
    for weights in run_folder.rglob("model.safetensors"):
        weights.unlink()
    refused(run("translate", run_folder, feed=b"ab\n"), "model.safetensors")


def test_checkpoint_with_an_altered_file(run_folder: Path) -> None:
    for weights in run_folder.rglob("model.safetensors"):
        altered = bytearray(weights.read_bytes())
        altered[-1] ^= 1
        weights.write_bytes(altered)
    refused(run("translate", run_folder, feed=b"ab\n"), "model.safetensors", "sha256")


def test_translate_of_a_line_that_is_too_long(run_folder: Path) -> None:
    refused(run("translate", run_folder, feed=b"ab\n" + b"a" * 300 + b"\n"), "standard input:2", "256")


def test_translate_of_no_utf8(run_folder: Path) -> None:
    refused(run("translate", run_folder, feed=b"\xff\n"), "standard input:1", "UTF-8")


def test_translate_on_a_device_that_is_not_here(run_folder: Path) -> None:
    refused(run("translate", run_folder, "--device", "cdua", feed=b"ab\n"), "--device", "cdua", '"cpu"')


def test_attention_to_a_file_of_unknown_kind(run_folder: Path, tmp_path: Path) -> None:
    refused(run("translate", run_folder, "--attention", tmp_path / "x.gif", feed=b"ab\n"), ".gif", ".html")


@pytest.mark.slow
def test_interrupted_training_saves_and_says_how_to_go_on(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [QKV, "train", "translate", *parallel(corpus), "--out", out, *SMALL[:-1], "1000000"]
    training = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    log = out / "metrics.jsonl"
    deadline = time.monotonic() + 90
    while not (log.exists() and log.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.1)
    training.send_signal(signal.SIGINT)
    _, messages = training.communicate(timeout=60)
    assert training.returncode == 130, messages.decode()
    assert "Traceback" not in messages.decode()
    assert "same command" in messages.decode()
    assert list(out.glob("step-*")), "the state is saved"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--width", "1000000000", "--queries", "1000000000000"], ["sizes", "width 1,000,000,000"]),
        (["--keys", "1" + "0" * 25], ["--keys", "1e+25"]),
    ],
)
def test_sizes_that_no_tensor_has(arguments: list[str], words: list[str]) -> None:
    refused(run("explain", *arguments), *words)


def test_a_device_without_numbers(trained: Path) -> None:
    refused(run("translate", trained, "--device", "meta"), "--device", "meta")


def test_a_vocabulary_that_no_memory_holds(corpus: Path, tmp_path: Path) -> None:
    sizes = ["--tokenizer", "bpe", "--vocabulary", "1000000000"]
    refused(
        run("train", "translate", *parallel(corpus), "--out", tmp_path / "out", *sizes), "--vocabulary", "1,000,000"
    )


def test_more_layers_than_anyone_waits_for(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("[model]\nencoder_layers = 100000000\n")
    refused(
        run("train", "translate", *parallel(corpus), "--out", tmp_path / "out", "--config", tmp_path / "run.toml"),
        "model.encoder_layers",
        "at most 10,000",
    )


def test_a_folder_that_cannot_be_written_to_is_said_before_texts_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for out in ("file", "file/run", "file" * 100):
        refused(run("train", "generate", "--text", tmp_path / "none", "--out", tmp_path / out), "file", "folder")


@pytest.mark.parametrize("command", ["view", "translate", "evaluate"])
def test_names_that_the_system_refuses(command: str) -> None:
    refused(run(command, "x" * 300, *(["--text", "a"] if command == "view" else [])), "xxx: expected ")
