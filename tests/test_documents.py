"""The documentation: its scripts and code run, and its figures exist."""

import gzip
import os
import re
import runpy
import shlex
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
WITH_COMMANDS = [ROOT / "docs" / "how_to" / "point.md", ROOT / "docs" / "how_to" / "regress.md"]
_FEW = {"count": 60, "steps": 2}
WITH_CODE = [page for page in PAGES if "```python" in page.read_text(encoding="utf-8")]


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


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda path: path.stem)
def test_code_on_page_runs(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")
    if "import transformers" in text or "from transformers" in text:
        pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        exec(compile(block, f"<{page.name}>", "exec"), scope)


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda path: path.stem)
def test_commands_on_page_run(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Commands run in the page's order, with fewer lines and steps."""
    monkeypatch.chdir(tmp_path)
    for block in re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL):
        for line in block.strip().splitlines():
            _run_line(re.sub(r"--(count|steps) \d+", lambda found: f"--{found[1]} {_FEW[found[1]]}", line), monkeypatch)


def _run_line(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given, _, command = line.rpartition(" | ")
    words = shlex.split(given)
    feed = "" if not words else words[1].encode().decode("unicode_escape") + ("\n" if words[0] == "echo" else "")
    name, *arguments = shlex.split(command)
    match name, arguments:
        case "qkv", _:
            succeeded(run(*arguments, feed=feed))
        case "python", ["-m", module, *rest]:
            monkeypatch.setattr(sys, "argv", [module, *rest])
            monkeypatch.delitem(sys.modules, module, raising=False)
            runpy.run_module(module, run_name="__main__")
        case "python", [script, *rest]:
            monkeypatch.setattr(sys, "argv", [script, *rest])
            runpy.run_path(str(ROOT / script), run_name="__main__")
        case _:
            assert name == "head", f"what runs {line!r}?"


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / "docs" / "how_to" / page).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def test_commands_for_linguists_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the settings of the page, fewer steps, and a few words."""
    monkeypatch.chdir(tmp_path)
    words = "".join(f"{a}{b}\t{a} {b}ː\n" for a in "maison" for b in "chatek")
    verbs = "".join(f"{a}{b}\t{a}{b}ed\tV;PST\n" for a in "walkop" for b in "talkus")
    for name, text in (("words.tsv", words), ("others.tsv", words), ("verbs.tsv", verbs)):
        Path(name).write_text(text, encoding="utf-8")
    (settings,) = blocks("pronounce.md", "toml")
    shorter, count = re.subn(r"(steps|validate_every|warmup|hidden|embedding) = \d+", r"\1 = 4", settings)
    assert count == 5
    Path("speech.toml").write_text(shorter, encoding="utf-8")
    commands = [line for block in blocks("pronounce.md", "sh") for line in block.splitlines()]
    assert len(commands) >= 10
    for command in commands:
        feed, _, rest = command.rpartition(" | ")
        said = "".join(shlex.split(feed)[1:]).replace("\\t", "\t").replace("\\n", "") + "\n" if feed else ""
        succeeded(run(*shlex.split(rest)[1:], feed=said))
    assert Path("maison.html").stat().st_size > 1000
    assert Path("page.html").stat().st_size > 1000


def test_commands_for_shards_run(tmp_path: Path) -> None:
    """In a shell, with two processes."""
    pairs = list(generate(40, seed=3))
    (tmp_path / "corpus.txt").write_text("".join(f"{pair.source}\n" for pair in pairs), encoding="utf-8")
    in_shell(blocks("scale.md", "sh")[0], tmp_path)
    alone = succeeded(run("translate", "example", "--beam", "5", feed="".join(f"{pair.source}\n" for pair in pairs)))
    assert (tmp_path / "translations.txt").read_text(encoding="utf-8") == alone.stdout
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


def test_commands_for_processes_run(tmp_path: Path) -> None:
    """In a shell, with two processes; the settings of the page, and fewer steps."""
    pairs = "".join(f"{a} {b}\t{b} {a}\n" for a in "abcdefgh" for b in "abcdefgh")
    (tmp_path / "pairs.tsv").write_text(pairs)
    (settings,) = blocks("scale.md", "toml")
    few = "steps = 3\n[model]\nwidth = 8\nheads = 2\nfeed_forward = 8\n"
    (tmp_path / "four.toml").write_text(settings + few)
    train = blocks("scale.md", "sh")[1]
    said = in_shell(f"export OMP_NUM_THREADS=1\n{train}", tmp_path)
    assert said.count("step 3:") == 1
    assert said.count("already completed all 3 steps") == 1
    given = ["--data", tmp_path / "pairs.tsv", "--config", tmp_path / "four.toml", "--out", tmp_path / "one"]
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
        for line in blocks("scale.md", "sh")[2].splitlines()
    ]
    said = in_shell("\n".join(["export OMP_NUM_THREADS=1", *commands]), tmp_path)
    assert said.count("step 2:") == 2
    assert (tmp_path / "prepared" / "MANIFEST.json").exists()


def test_first_code_of_the_readme_runs() -> None:
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    assert block is not None
    assert len(block[1].splitlines()) <= 10
    exec(compile(block[1], "README.md", "exec"), {})


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda path: path.stem)
def test_links_on_page_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        generated = (page.parent / link).resolve().relative_to(ROOT).as_posix() in GENERATED
        assert generated or (page.parent / link).exists(), f"{page}: {link}"
