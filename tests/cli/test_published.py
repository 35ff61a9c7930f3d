"""Published folders from the command line: the same commands as for our own runs."""

from pathlib import Path

import pytest
from tests.cli.command import refused, run, succeeded

HERE = Path(__file__).parent.parent / "hub" / "families"


@pytest.mark.parametrize("how", [["--temperature", "0"], ["--beam", "4"], ["--seed", "3"]], ids=" ".join)
def test_generate(how: list[str]) -> None:
    done = succeeded(run("generate", HERE / "llama", "--prompt", "the cat", "--tokens", "8", *how))
    assert done.stdout.startswith("the cat")


def test_more_tokens_than_the_context() -> None:
    refused(run("generate", HERE / "llama", "--prompt", "the cat", "--tokens", "99"), "tokens: expected at most")


def test_translate() -> None:
    done = succeeded(run("translate", HERE / "marian", "--max-tokens", "4", "--beam", "4", feed="the cat sat\na hat\n"))
    assert done.stdout.count("\n") == 2


def test_evaluate(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("the cat sat on the mat\n", encoding="utf-8")
    done = succeeded(run("evaluate", HERE / "llama", "--text", tmp_path / "text"))
    assert done.stdout.startswith("loss\t")


@pytest.mark.parametrize(("name", "text"), [("llama", "the cat sat"), ("bert", "the cat sat"), ("marian", "cat")])
def test_view(name: str, text: str, tmp_path: Path) -> None:
    succeeded(run("view", HERE / name, "--text", text, "--export", tmp_path / "map.html"))
    assert (tmp_path / "map.html").stat().st_size > 10_000


def test_export(tmp_path: Path) -> None:
    done = succeeded(run("export", HERE / "llama", "--to", "transformers", "--out", tmp_path / "out"))
    names = {Path(line).name for line in done.stdout.splitlines()}
    texts = {"about.json", "config.json", "generation_config.json", "tokenizer.json"}
    assert names == {"answer.py", "model.safetensors", *texts}
    (tmp_path / "full").mkdir()
    refused(run("export", HERE / "llama", "--to", "transformers", "--out", tmp_path / "full"), "does not exist yet")
