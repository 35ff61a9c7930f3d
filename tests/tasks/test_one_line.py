"""A setting is one line: it is then a flag, a line of a settings file, an argument in Python, and on its page.

So it is in the table of training settings, and in the configuration of each model.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import qkv

SOURCE, ROOT = Path(qkv.__file__).parent, Path(__file__).parents[2]
LINE = '    shuffles: Annotated[int, Option("Shuffles of the data", "times", least=1)] = 3\n'
AFTER = '    seed: Annotated[int, Option("Random seed", least=0)] = 0\n'
PROGRAM = """
import importlib.util, inspect, json, sys, tomllib
from pathlib import Path

import qkv
from qkv.errors import ConfigError
from qkv.tasks.load import load
from tests.cli.command import refused, run, succeeded

folder = Path(sys.argv[1])
assert Path(qkv.__file__).is_relative_to(folder), qkv.__file__
pairs = [("good", "a fine film"), ("bad", "a dull film")] * 20
(folder / "films.tsv").write_text("".join(f"{label}\\t{text}\\n" for label, text in pairs))
flags = ("train", "classify", "--data", folder / "films.tsv", "--steps", "1", "--width", "8")

shown = succeeded(run("train", "classify", "--help")).stdout
assert "--shuffles" in shown and "Shuffles of the data (3 times)" in " ".join(shown.replace("\\u2502", " ").split())
assert tomllib.loads(succeeded(run(*flags, "--print-config")).stdout)["training"]["shuffles"] == 3
assert tomllib.loads(succeeded(run(*flags, "--shuffles", "5", "--print-config")).stdout)["training"]["shuffles"] == 5
(folder / "run.toml").write_text("[training]\\nshuffles = 7\\n")
printed = succeeded(run(*flags, "--config", folder / "run.toml", "--print-config")).stdout
assert tomllib.loads(printed)["training"]["shuffles"] == 7
refused(run(*flags, "--out", folder / "run", "--shuffles", "0"), "--shuffles", "at least 1")

assert inspect.signature(qkv.train).parameters["shuffles"].default is None
try:
    qkv.train("classify", data=pairs, out=folder / "none", shuffles="many")
except ConfigError as error:
    assert error.argument == "shuffles" and "an integer, at least 1" in error.expected, error
else:
    raise AssertionError
made = qkv.train("classify", data=pairs, out=folder / "run", steps=1, width=8, shuffles=4, quiet=True)
stored = json.loads((made.folder / "run.json").read_text())["config"]["training"]
assert stored["shuffles"] == 4
refused(run(*flags, "--out", folder / "run", "--shuffles", "6"), "--shuffles 6 (it was 4)")

spec = importlib.util.spec_from_file_location("reference", Path("docs/_site/reference.py"))
reference = importlib.util.module_from_spec(spec)
spec.loader.exec_module(reference)
reference.write(folder)
page = (folder / "settings.md").read_text()
assert page.count("| `shuffles` | Shuffles of the data (3 times). | an integer, at least 1 |") == 5
assert "`--shuffles`" in (folder / "command_line.md").read_text()
"""

TURN = '    turns: Annotated[int, Option("Turns of the model", "times", least=1)] = 3\n'
CONFIGURATIONS = {
    "models/configs/translator.py": ("TransformerConfig", "RecurrentConfig", "MonotonicConfig"),
    "models/configs/language_model.py": ("DecoderConfig", "RecurrentDecoderConfig"),
    "models/configs/reader.py": ("ReaderConfig",),
    "models/configs/pointer.py": ("PointerConfig",),
    "tasks/regress/settings.py": ("RegressModel",),
}
"""The configurations of models, of which that of classifiers extends that of taggers."""
CHECKS = "\n    def __post_init__"
OF_MODELS = """
import importlib.util, inspect, sys, tomllib
from pathlib import Path

import qkv
from qkv.errors import ConfigError
from qkv.settings import build
from qkv.tasks.catalog import TASKS, recipe_of
from tests.cli.command import refused, run, succeeded

folder = Path(sys.argv[1])
assert Path(qkv.__file__).is_relative_to(folder), qkv.__file__
KINDS = [
    ("translate", "--model transformer"), ("translate", "--model gru"),
    ("translate", "--model gru --alignment monotonic-0"),
    ("generate", "--model transformer"), ("generate", "--model gru"),
    ("classify", ""), ("tag", ""), ("point", ""), ("regress", ""),
]
(folder / "turns.toml").write_text("[model]\\nturns = 7\\n")
for task, kind in KINDS:
    def printed(*flags):
        shown = succeeded(run("train", task, *kind.split(), *flags, "--print-config")).stdout
        return tomllib.loads(shown)["model"]["turns"]

    shown = succeeded(run("train", task, "--help")).stdout
    assert "--turns" in shown and "Turns of the model (3 times)" in " ".join(shown.replace("\\u2502", " ").split())
    assert (printed(), printed("--turns", "5"), printed("--config", folder / "turns.toml")) == (3, 5, 7)
    refused(run("train", task, *kind.split(), "--turns", "0", "--print-config"), "--turns", "at least 1")
    words = dict(zip((flag.removeprefix("--") for flag in kind.split()[::2]), kind.split()[1::2]))
    settings = recipe_of(task).load_settings({"model": {**words, "turns": 4}})
    assert settings.model.turns == 4
    stored = recipe_of(task).stored(settings)["model"]
    assert stored["turns"] == 4
    assert build(TASKS[task].tables["model"], stored, "model") == settings.model
    try:
        qkv.train(task, out=folder / "none", turns="many", **words)
    except ConfigError as error:
        assert error.argument == "turns" and "an integer, at least 1" in error.expected, error
    else:
        raise AssertionError
assert inspect.signature(qkv.train).parameters["turns"].default is None

spec = importlib.util.spec_from_file_location("reference", Path("docs/_site/reference.py"))
reference = importlib.util.module_from_spec(spec)
spec.loader.exec_module(reference)
reference.write(folder)
page = (folder / "settings.md").read_text()
assert page.count("| `turns` | Turns of the model (3 times). | an integer, at least 1 |") == len(TASKS)
"""


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package with one more line."""
    folder = tmp_path_factory.mktemp("changed")
    shutil.copytree(SOURCE, folder / "qkv", ignore=shutil.ignore_patterns("*.log"))
    path = folder / "qkv" / "training_settings.py"
    text = path.read_text(encoding="utf-8")
    assert text.count(AFTER) == 1
    path.write_text(text.replace(AFTER, AFTER + LINE), encoding="utf-8")
    for name, classes in CONFIGURATIONS.items():
        path = folder / "qkv" / name
        text = path.read_text(encoding="utf-8")
        for each in classes:
            before, body = re.split(rf"(?<=\nclass {each}\b)", text, maxsplit=1)
            text = before + body.replace(CHECKS, f"\n{TURN}{CHECKS}", 1)
        path.write_text(text, encoding="utf-8")
    return folder


def python(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    search = {
        "PYTHONPATH": f"{folder}:{ROOT}",
        "MYPYPATH": str(folder),
        "PATH": "",
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "200",
    }
    given = [sys.executable, *map(str, arguments)]
    return subprocess.run(given, capture_output=True, text=True, cwd=ROOT, env=search, check=False)


def test_a_setting_of_one_line_is_everywhere(changed: Path) -> None:
    done = python(changed, "-c", PROGRAM, changed)
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_setting_of_one_line_in_each_configuration_is_everywhere(changed: Path) -> None:
    done = python(changed, "-c", OF_MODELS, changed)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
def test_type_checkers_see_a_setting_of_one_line(changed: Path) -> None:
    """So do editors, which complete and check arguments by the same types."""
    (changed / "use.py").write_text(
        "import qkv\n"
        'run = qkv.train("tag", out="run", data=[[("Ada", "NAME")]], shuffles=4)\n'
        "reveal_type(run.load())\n"
        'qkv.train("tag", out="run", shuffles="many")\n'
        'qkv.train("regress", out="run", shuffles=4)\n'
        'qkv.train("tag", out="run", x="age")\n'
        'qkv.train("generate", out="run", model="gru", turns=4)\n'
        'qkv.train("generate", out="run", model="gru", size=4)\n'
    )
    done = python(changed, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", changed / "use.py")
    found = [line for line in done.stdout.splitlines() if "use.py" in line]
    assert "Tagger" in found[0], done.stdout
    assert {line.split(":")[1] for line in found if " error: " in line} == {"4", "5", "6", "8"}, done.stdout
