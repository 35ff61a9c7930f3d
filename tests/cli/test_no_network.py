"""Training and use open no connection, as SECURITY.md promises."""

import os
import sys
from pathlib import Path

import pytest
from tests.cli.command import run, succeeded
from tests.programs_in_forks import in_fork

pytestmark = pytest.mark.forks

PUBLISHED = Path(__file__).parents[1] / "hub" / "families" / "llama"
HARMLESS = {"socket.gethostname"}
"""What TensorBoard writes into the name of a file."""


def forbid_sockets(event: str, arguments: tuple[object, ...]) -> None:
    """Refuse every socket of Python, also one that is only made, and every look-up of an address."""
    if event.startswith("socket.") and event not in HARMLESS:
        raise AssertionError(f"{event}{arguments}")


def use_everything() -> None:
    """Commands that train, answer, draw, save, prepare and read what others published."""
    sys.addaudithook(forbid_sockets)
    Path("pairs.tsv").write_text("".join(f"{a} {b}\t{b} {a}\n" for a in "abcdef" for b in "abcdef"))
    small = ("--steps", "1", "--width", "8", "--batch-tokens", "200")
    for command in (
        ("train", "translate", "--data", "pairs.tsv", "--model", "gru", *small, "--out", "run"),
        ("translate", "run", "--attention", "map.html", "--max-tokens", "4"),
        ("evaluate", "run", "--data", "pairs.tsv", "--max-tokens", "4"),
        ("view", "run", "--text", "a b", "--export", "page.html"),
        ("prepare", "pairs.tsv", "--out", "prepared", "--tokenizer", "char", "--processes", "1"),
        ("train", "generate", "prepared", *small, "--heads", "2", "--layers", "1", "--context", "4", "--out", "text"),
        ("generate", "text", "--tokens", "2", "--prompt", "a"),
        ("generate", PUBLISHED, "--tokens", "2", "--prompt", "the cat"),
        ("explain",),
    ):
        succeeded(run(*command, feed="a b\n"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a hook for audits stays for ever, so it is set in a fork")
def test_no_command_opens_a_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = in_fork(use_everything)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a hook for audits stays for ever, so it is set in a fork")
def test_a_connection_would_be_seen() -> None:
    def connect() -> None:
        sys.addaudithook(forbid_sockets)
        import socket

        socket.create_connection(("127.0.0.1", 9), timeout=1)

    assert "AssertionError: socket." in in_fork(connect).stderr
