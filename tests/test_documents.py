"""The documentation: its scripts run, its commands for several processes do, its figures exist, its links lead on."""

import gzip
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.cli.command import QKV, run, succeeded

from qkv.data.phrases import generate

ROOT = Path(__file__).parent.parent
SCRIPTS = sorted(path for path in (ROOT / "examples" / "mechanisms").glob("*.py") if path.name != "drawing.py")
PAGES = sorted((ROOT / "docs").rglob("*.md"))
GENERATED = {f"docs/reference/{page}.md" for page in ("api/index", "command_line", "settings")}
"""Pages that `make docs` writes."""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_script_draws_its_figure(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(script.parent)
    monkeypatch.setattr(sys, "argv", [str(script), "--out", str(tmp_path)])
    runpy.run_path(str(script), run_name="__main__")
    assert (tmp_path / f"{script.stem}.svg").stat().st_size > 1000
    figures = ROOT / "docs" / "understanding" / "mechanisms" / "figures"
    assert (figures / f"{script.stem}.svg").exists(), "the page's figure is committed"


def test_the_figure_of_looking_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["looking.py", "--out", str(tmp_path)])
    runpy.run_path(str(ROOT / "examples" / "looking.py"), run_name="__main__")
    assert (tmp_path / "looking.svg").stat().st_size > 1000
    assert (ROOT / "docs" / "pictures" / "looking.svg").exists(), "the page's figure is committed"


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / "docs" / "how_to" / page).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


@pytest.mark.slow
def test_commands_for_shards_run(tmp_path: Path) -> None:
    """In a shell, with two processes."""
    pairs = list(generate(40, seed=3))
    (tmp_path / "corpus.txt").write_text("".join(f"{pair.source}\n" for pair in pairs), encoding="utf-8")
    in_shell(blocks("scale.md", "sh")[0], tmp_path)
    alone = succeeded(run("translate", "example", "--beam", "5", feed="".join(f"{pair.source}\n" for pair in pairs)))
    assert (tmp_path / "translations.txt").read_text(encoding="utf-8") == alone.stdout
    right = [line == pair.target for line, pair in zip(alone.stdout.splitlines(), pairs, strict=True)]
    assert sum(right) > 0.9 * len(right)
    assert sum(1 for path in (tmp_path / "out").iterdir() if path.is_file()) == 8


def in_shell(commands: str, folder: Path) -> str:
    """Run commands as a user does, and return what they say on standard error."""
    programs = [folder / "programs", QKV.parent]
    programs[0].mkdir()
    torchrun = programs[0] / "torchrun"
    torchrun.write_text(f'#!/bin/sh\nexec {sys.executable} -m torch.distributed.run "$@"\n')
    torchrun.chmod(0o755)
    path = os.pathsep.join([*map(str, programs), os.environ["PATH"]])
    shell = ["bash", "-euo", "pipefail", "-c", commands]
    done = subprocess.run(shell, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stderr.decode()


@pytest.mark.slow
def test_commands_for_processes_run(tmp_path: Path) -> None:
    """In a shell, with two processes; a small model, and fewer steps."""
    pairs = "".join(f"{a} {b}\t{b} {a}\n" for a in "abcdefgh" for b in "abcdefgh")
    (tmp_path / "pairs.tsv").write_text(pairs)
    small = "--width 8 --heads 2 --feed-forward 8"
    train = blocks("scale.md", "sh")[1].replace("--steps 20", f"--steps 3 {small}")
    said = in_shell(f"export OMP_NUM_THREADS=1\n{train}", tmp_path)
    assert said.count("step 3:") == 1
    assert said.count("already completed all 3 steps") == 1
    given = [
        "--data",
        tmp_path / "pairs.tsv",
        "--steps",
        "3",
        "--parts",
        "2",
        *small.split(),
        "--out",
        tmp_path / "one",
    ]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        succeeded(run("train", "translate", *given))
    finally:
        torch.set_num_threads(threads)
    one, two = (tmp_path / name / "step-00000003" for name in ("one", "runs/two"))
    assert {path.name: path.read_bytes() for path in one.iterdir()} == {
        path.name: path.read_bytes() for path in two.iterdir()
    }


@pytest.mark.slow
def test_commands_for_prepared_corpora_run(tmp_path: Path) -> None:
    """In a shell, with two processes; trainings of small models with few steps."""
    pairs = list(generate(400, seed=3))
    (tmp_path / "pairs.tsv").write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in pairs), encoding="utf-8")
    (tmp_path / "corpus").mkdir()
    for name, some in (("a", pairs[:200]), ("b", pairs[200:])):
        text = "".join(f"{pair.source}\n" for pair in some)
        (tmp_path / "corpus" / f"{name}.txt.gz").write_bytes(gzip.compress(text.encode()))
    small = "--steps 2 --batch-tokens 256 --width 8 --heads 2 --feed-forward 8"
    commands = [
        f"{line} {small}{' --context 16' if 'generate' in line else ''}" if line.startswith("qkv train") else line
        for line in blocks("scale.md", "sh")[3].splitlines()
    ]
    said = in_shell("\n".join(["export OMP_NUM_THREADS=1", *commands]), tmp_path)
    assert said.count("step 2:") == 2
    assert (tmp_path / "prepared" / "MANIFEST.json").exists()


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda path: path.stem)
def test_links_on_page_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        generated = (page.parent / link).resolve().relative_to(ROOT).as_posix() in GENERATED
        assert generated or (page.parent / link).exists(), f"{page}: {link}"
