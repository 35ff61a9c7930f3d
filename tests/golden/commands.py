"""What commands print, what trainings learn, and what runs of an earlier state still answer."""

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from safetensors.torch import load_file
from tests.cli.command import run
from tests.cli.shelf import FILES, SMALL, TRAININGS
from tests.cli.test_defaults import COMMANDS
from tests.golden.numbers import digest

from qkv.checkpoint.rotation import latest_complete

PAIRS = ["--data", "pairs.tsv", "--tokenizer", "char"]
KINDS = ("transformer", "gru", "lstm", "rnn")
CONFIGURED = {
    **{f"translate {kind}": ["translate", *PAIRS, "--model", kind] for kind in KINDS},
    "translate monotonic": ["translate", *PAIRS, "--model", "gru", "--alignment", "monotonic-1"],
    "translate copying": ["translate", "--data", "pairs.tsv", "--model", "lstm", "--copy", "mixture"],
    "translate two kinds": [
        "translate",
        *PAIRS,
        "--encoder",
        "transformer",
        "--decoder",
        "gru",
        "--encoder-heads",
        "2",
    ],
    "translate columns": ["translate", "--data", "pairs.tsv", "--source-col", "2", "--target-col", "1"],
    "translate ensemble": ["translate", *PAIRS, "--ensemble", "4", "--both-directions"],
    **{f"generate {kind}": ["generate", "--text", "plays.txt", "--model", kind] for kind in KINDS},
    **{f"classify {kind}": ["classify", "--data", "films.tsv", "--model", kind] for kind in (*KINDS, "none")},
    **{f"tag {kind}": ["tag", "--data", "names.conll", "--model", kind] for kind in KINDS},
    **{f"point {kind}": ["point", "--data", "sort.tsv", "--model", kind] for kind in KINDS},
    "regress": ["regress", "--data", "rents.csv", "--x", "area", "--y", "rent"],
    "regress mean": ["regress", "--data", "rents.csv", "--x", "area", "--y", "rent", "--degree", "0"],
}
TRAINED = {
    **TRAININGS,
    "translate transformer": ["--data", "pairs.tsv", "--tokenizer", "char", "--heads", "2", *SMALL],
    "translate resumed": ["--data", "pairs.tsv", "--model", "gru", "--tokenizer", "char", *SMALL],
    "translate together": [*PAIRS, "--model", "gru", "--accumulate", "2", "--processes", "2", *SMALL],
    "translate ensemble": [*PAIRS, "--model", "gru", "--ensemble", "2", *SMALL],
}
RESUMED = ["--data", "pairs.tsv", "--model", "gru", "--tokenizer", "char", "--width", "8", "--steps", "4"]
ASKED = {
    "translate": [["translate"], ["translate", "--beam", "3", "--n-best", "2"], ["translate", "--json"]],
    "translate transformer": [["translate"], ["translate", "--show"]],
    "translate together": [["translate"]],
    "translate ensemble": [["translate", "--beam", "2"]],
    "classify": [["classify"], ["classify", "--json"]],
    "tag": [["tag"], ["tag", "--json"]],
    "generate": [["generate", "--prompt", "KING", "--tokens", "9", "--seed", "1"]],
    "point": [["point"], ["point", "--json"]],
    "regress": [["regress"]],
}
SPOKEN = {
    "classify": "a funny film\n",
    "tag": "Ada sleeps\n",
    "point": "3 1 2\n",
    "regress": "area\n25\n",
}
EVALUATED = {
    "translate": ["--data", "test.tsv"],
    "translate transformer": ["--data", "test.tsv"],
    "classify": ["--data", "films.tsv"],
    "tag": ["--data", "names.conll"],
    "generate": ["--text", "plays.txt"],
    "point": ["--data", "sort.tsv"],
    "regress": ["--data", "rents.csv"],
}
VIEWED = {
    "translate": "a b",
    "translate transformer": "a b",
    "classify": "a funny film",
    "tag": "Ada sleeps",
    "generate": "KING",
    "point": "3 1 2",
    "regress": "area\n25",
}


def said(folder: Path, *arguments: str, feed: str = "") -> str:
    """The exit code of a command and its standard output, or its message if it failed; without the folder's name."""
    done = run(*arguments, feed=feed)
    text = done.stdout if done.exit_code == 0 else done.stderr
    return f"{done.exit_code}: {text.replace(str(folder), '@')}"


def helps(folder: Path) -> Iterator[tuple[str, str]]:
    """The help of every command."""
    for name in COMMANDS:
        yield name, said(folder, *name.split(), "--help")


def configs(folder: Path) -> Iterator[tuple[str, str]]:
    """All settings of every task and kind of model."""
    for name, (task, *flags) in CONFIGURED.items():
        yield name, said(folder, "train", task, *flags, "--print-config")


def trainings(folder: Path) -> Iterator[tuple[str, str]]:
    """The weights and the log of short trainings: of every task, one resumed, one of two processes, an ensemble."""
    runs = folder / "new"
    shutil.rmtree(runs, ignore_errors=True)
    for name, flags in TRAINED.items():
        yield name, said(folder, "train", name.split()[0], *flags, "--out", str(runs / name))
        if name == "translate resumed":
            yield f"{name}, again", said(folder, "train", "translate", *RESUMED, "--out", str(runs / name))
        logs = sorted(runs.glob(f"{name}/**/metrics.jsonl"))
        yield f"learned {name}", "; ".join(learned(log.parent) for log in logs)


def learned(run_folder: Path) -> str:
    """The weights of the newest checkpoint, and the log without times."""
    newest = latest_complete(run_folder, lambda _: None)
    assert newest is not None
    tensors = load_file(newest / "model.safetensors")
    weights = digest(*(tensors[name] for name in sorted(tensors)))
    rows = map(json.loads, (run_folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    kept = [{name: item for name, item in row.items() if "second" not in name and "time" not in name} for row in rows]
    return f"{weights} {json.dumps(kept)}"


def runs(folder: Path) -> Iterator[tuple[str, str]]:
    """What runs that the recorded state trained answer, how they score, what the viewer shows, and how they go on."""
    for name, commands in ASKED.items():
        for command, *flags in commands:
            path = str(folder / "runs" / name)
            yield f"{name}: {command} {flags}", said(folder, command, path, *flags, feed=SPOKEN.get(name, "a b\n"))
    for name, flags in EVALUATED.items():
        yield f"evaluate {name}", said(folder, "evaluate", str(folder / "runs" / name), *flags)
    page = folder / "page.html"
    for name, text in VIEWED.items():
        yield f"view {name}", said(folder, "view", str(folder / "runs" / name), "--text", text, "--export", str(page))
        yield f"page of {name}", hashlib.sha256(page.read_bytes()).hexdigest()
    again = folder / "again"
    shutil.rmtree(again, ignore_errors=True)
    shutil.copytree(folder / "runs" / "translate", again)
    yield "resumed", said(folder, "train", "translate", *RESUMED, "--out", str(again))
    yield "learned by the resumed run", learned(again)


def make_shelf(folder: Path) -> None:
    """Write the data, and train the runs that later states are asked about."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    for name, flags in TRAINED.items():
        if not (folder / "runs" / name).exists():
            done = run("train", name.split()[0], *flags, "--out", folder / "runs" / name)
            assert done.exit_code == 0, done.stderr
