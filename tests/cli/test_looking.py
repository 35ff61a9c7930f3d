"""Every task can be looked at: task × (terminal, file, record, view, export), shown or refused by name."""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from tests.cli.command import refused, run, succeeded
from tests.pairs import in_turn

import qkv
from qkv.recording.recorder import record

Arguments = tuple[str, ...]
_WORDS = "".join(f"{a} {b}\t{b} {a}\n" for a in "abcdefgh" for b in "abcdefgh")
_FILES: Mapping[str, str] = MappingProxyType(
    {
        "pairs.tsv": _WORDS,
        "films.tsv": "good\ta fine film\nbad\ta dull film\n" * 10,
        "names.conll": "Ada\tB-PER\nwrote\tO\n\nYes\tO\n\n" * 10,
        "text.txt": "to be or not to be\n" * 40,
        "sort.tsv": "".join(f"{a} {b}\t{'1 2' if a <= b else '2 1'}\n" for a in range(8) for b in range(8)),
        "rents.csv": "area,rent\n" + "".join(f"{n},{10 * n + n % 3}\n" for n in range(20)),
    }
)
_SMALL = ("--steps", "1")
_TASKS: Mapping[str, tuple[str, Arguments]] = MappingProxyType(
    {
        "translate gru": (
            "translate",
            ("--data", "pairs.tsv", "--model", "gru", "--width", "8", "--tokenizer", "word", *_SMALL),
        ),
        "translate none": (
            "translate",
            ("--data", "pairs.tsv", "--model", "gru", "--width", "8", "--score", "none", *_SMALL),
        ),
        "translate transformer": ("translate", ("--data", "pairs.tsv", "--config", "translate.toml", *_SMALL)),
        "translate copy": ("translate", ("--data", "pairs.tsv", "--config", "copy.toml", *_SMALL)),
        "translate copy gru": (
            "translate",
            ("--data", "pairs.tsv", "--model", "gru", "--width", "8", "--copy", "mixture", *_SMALL),
        ),
        "translate from gru": (
            "translate",
            ("--data", "pairs.tsv", "--config", "one.toml", "--encoder", "gru", "--decoder", "transformer", *_SMALL),
        ),
        "classify": ("classify", ("--data", "films.tsv", "--model", "none", "--width", "8", *_SMALL)),
        "tag transformer": (
            "tag",
            ("--data", "names.conll", "--model", "transformer", "--config", "tag.toml", *_SMALL),
        ),
        "tag gru": ("tag", ("--data", "names.conll", "--model", "gru", "--width", "8", *_SMALL)),
        "generate": (
            "generate",
            ("--text", "text.txt", "--layers", "1", "--width", "8", "--heads", "2", "--context", "16", *_SMALL),
        ),
        "generate gru": (
            "generate",
            ("--text", "text.txt", "--model", "gru", "--width", "8", "--context", "16", *_SMALL),
        ),
        "point transformer": ("point", ("--data", "sort.tsv", "--width", "8", *_SMALL)),
        "point gru": ("point", ("--data", "sort.tsv", "--model", "gru", "--width", "8", *_SMALL)),
        "regress": ("regress", ("--data", "rents.csv", "--x", "area", "--y", "rent")),
    }
)
_CONFIGS = {
    "translate.toml": "[model]\nwidth = 8\nheads = 2\nfeed_forward = 8\nencoder_layers = 1\ndecoder_layers = 1\n",
    "copy.toml": "[model]\nwidth = 8\nheads = 2\nfeed_forward = 8\ncopy = 'joint'\n",
    "one.toml": "[model]\nwidth = 8\nheads = 2\nfeed_forward = 8\ndecoder_layers = 1\n",
    "tag.toml": "[model]\nwidth = 8\nheads = 2\nfeed_forward = 8\n",
}
_GIVEN = {"translate": "a b", "classify": "a fine film", "tag": "Ada wrote", "point": "3 1 2", "regress": "7.5"}
_WITHOUT = ("translate none", "tag gru")
"""Models without attention."""
_REFUSED = ("point transformer", "point gru", "regress", "translate copy", "translate copy gru", "generate gru")
"""Models that read no text, or that ONNX has no graph for."""
_TO_EXPORT = [name if name in _REFUSED else pytest.param(name, marks=pytest.mark.slow) for name in _TASKS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("looking")
    for name, text in {**_FILES, **_CONFIGS}.items():
        (made / name).write_text(text, encoding="utf-8")
    for name, (task, arguments) in _TASKS.items():
        given = [made / part if part in {**_FILES, **_CONFIGS} else part for part in arguments]
        succeeded(run("train", task, *given, "--out", made / name))
    return made


def _looked(folder: Path, name: str, *flags: str | Path) -> Any:
    task = _TASKS[name][0]
    if task == "generate":
        return run(task, folder / name, "--prompt", "to be", "--tokens", "6", *flags)
    return run(task, folder / name, *flags, feed=_GIVEN[task] + "\n")


@pytest.fixture(scope="module")
def answers(folder: Path) -> Callable[[str], str]:
    """What each run answers where nobody looks."""
    return cache(lambda name: succeeded(_looked(folder, name)).stdout)


@pytest.mark.parametrize("name", in_turn(_TASKS, every=3))
def test_attention_is_drawn_in_the_terminal(name: str, folder: Path) -> None:
    done = _looked(folder, name, "--show")
    if name in _WITHOUT:
        refused(done, "expected a model with attention")
        return
    succeeded(done)
    assert any(shade in done.stderr for shade in "░▒▓█"), done.stderr


@pytest.mark.parametrize(("name", "suffix"), in_turn(_TASKS, (".html", ".svg", ".png"), every=6))
def test_attention_is_drawn_in_a_file(
    name: str, suffix: str, folder: Path, answers: Callable[[str], str], tmp_path: Path
) -> None:
    done = _looked(folder, name, "--attention", tmp_path / f"a{suffix}")
    if name in _WITHOUT:
        refused(done, "expected a model with attention")
        assert not (tmp_path / f"a{suffix}").exists()
        return
    assert answers(name) == succeeded(done).stdout, "looking changes no answer"
    assert (tmp_path / f"a{suffix}").stat().st_size > 1000


@pytest.mark.parametrize("name", in_turn(_TASKS, every=3))
def test_the_viewer_shows_what_is_recorded(name: str, folder: Path, tmp_path: Path) -> None:
    task, page = _TASKS[name][0], tmp_path / "v.html"
    text = _GIVEN.get(task, "to be")
    done = run("view", folder / name, "--text", text, "--export", page)
    if name in _WITHOUT:
        refused(done, "expected a model with attention")
        return
    succeeded(done)
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    found = qkv.load(folder / name)
    scene = found.scene(text)
    with record(found.model) as trace:
        pass
    assert {layer.name for layer in scene.layers} == set(trace.layers)
    for layer in scene.layers:
        sums = layer.map().dense().double().sum(-1)
        torch.testing.assert_close(sums, torch.ones_like(sums), atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", _TO_EXPORT)
def test_a_model_is_exported_or_refused_by_name(name: str, folder: Path, tmp_path: Path) -> None:
    done = run("export", folder / name, "--to", "onnx", "--out", tmp_path / "out")
    if name not in _REFUSED:
        pytest.importorskip("onnx")
        succeeded(done)
        return
    refused(done, "expected", "got")
    assert not (tmp_path / "out").exists()
