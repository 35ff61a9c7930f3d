"""A small training run of each model family, from files to run folder, in this process or by the real command."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any

from qkv.settings import to_toml
from qkv.tasks.classify import recipe as classify
from qkv.tasks.generate import recipe as generate
from qkv.tasks.point import recipe as point
from qkv.tasks.run import train_run
from qkv.tasks.tag import recipe as tag
from qkv.tasks.translate import recipe as translate
from qkv.training.events import Outcome

QKV = Path(sys.executable).parent / "qkv"
STEPS = 24
TRAINING = {"steps": STEPS, "batch_tokens": 64, "validate_every": 5, "log_every": 4, "warmup": 4, "keep": 99, "seed": 3}
WORDS = ("the", "cat", "sat", "on", "mat", "and", "dog", "ran", "to", "a")


@dataclass(frozen=True)
class Family:
    """One family.

    Args:
        task: the subcommand of `qkv train`.
        model: the model settings.
        tokenizer: its kind; None for a task that has none.
        file: the name of its data, for a task with several kinds.
    """

    task: str
    model: Mapping[str, Any]
    tokenizer: str | None = None
    file: str = "numbers.tsv"

    def tables(self, data: Path, **changes: Any) -> dict[str, dict[str, Any]]:
        files = {
            "translate": {"source": data / "a.txt", "target": data / "b.txt"},
            "generate": {"text": data / "a.txt"},
            "classify": {"data": data / "labeled.tsv"},
            "tag": {"data": data / "tagged.conll"},
            "point": {"data": data / self.file},
        }
        own = {"generate": {"validate_every": 6}, "point": {"learning_rate": 0.001}}.get(self.task, {})
        words = {"tokenizer": self.tokenizer, "vocabulary": 300, "minimum": 1}
        return {
            "data": files[self.task],
            **({} if self.tokenizer is None else {"tokenizer": words}),
            "model": dict(self.model),
            "training": {**TRAINING, **own, **changes},
        }

    def train(self, data: Path, out: Path, **changes: Any) -> Outcome:
        recipe = _recipe(self.task)
        settings = recipe.load_settings(self.tables(data, **changes))
        return train_run(recipe, settings, out, "cpu", tensorboard=False, origin=None)

    def command(self, data: Path, out: Path, **changes: Any) -> list[str]:
        config = out.with_suffix(".toml")
        config.write_text(to_toml(as_texts(self.tables(data, **changes))), encoding="utf-8")
        return [str(QKV), "train", self.task, "--config", str(config), "--out", str(out)]


def _recipe(task: str) -> Any:
    recipes = {"translate": translate.RECIPE, "generate": generate.RECIPE, "point": point.RECIPE}
    return {**recipes, "classify": classify.RECIPE, "tag": tag.RECIPE}[task]


def as_texts(tables: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Tables as a TOML file can hold them."""
    return {
        name: {key: str(item) if isinstance(item, Path) else item for key, item in table.items()}
        for name, table in tables.items()
    }


_RECURRENT = {"model": "gru", "embedding": 8, "hidden": 8, "attention": 8}
_TRANSFORMER = {"width": 16, "heads": 2, "feed_forward": 16, "encoder_layers": 1, "decoder_layers": 1}
_LANGUAGE = {"width": 16, "heads": 2, "feed_forward": 16, "layers": 1, "context": 8}
_POINTER = {"width": 8, "attention": 8}
FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "gru": Family("translate", _RECURRENT, "word"),
        "transformer": Family("translate", {"model": "transformer", **_TRANSFORMER}, "word"),
        "language": Family(
            "generate", {"width": 16, "heads": 2, "feed_forward": 16, "layers": 1, "context": 8}, "char"
        ),
        "classifier": Family("classify", {"model": "gru", "width": 8}, "word"),
        "tagger": Family("tag", {"model": "lstm", "width": 8}, "word"),
        "pointer": Family("point", {**_POINTER, "layers": 1, "heads": 2, "dropout": 0.1}),
        "pointer at words": Family("point", {**_POINTER, "model": "lstm", "once": False}, file="words.tsv"),
    }
)


def write_data(folder: Path, count: int = 60) -> Path:
    """Write the files of all families."""
    random = Random(0)
    lines = [random.choices(WORDS, k=random.randint(2, 6)) for _ in range(count)]
    (folder / "a.txt").write_text("".join(f"{' '.join(line)}\n" for line in lines), encoding="utf-8")
    (folder / "b.txt").write_text("".join(f"{' '.join(line[::-1])}\n" for line in lines), encoding="utf-8")
    labeled = "".join(f"{('odd', 'even')[len(line) % 2]}\t{' '.join(line)}\n" for line in lines)
    (folder / "labeled.tsv").write_text(labeled, encoding="utf-8")
    tagged = "\n".join("".join(f"{word}\t{'O' if len(word) < 3 else 'B-X'}\n" for word in line) for line in lines)
    (folder / "tagged.conll").write_text(tagged, encoding="utf-8")
    lengths = [f"{' '.join(str(len(word)) for word in line)}\t{1 + len(line) // 2}\n" for line in lines]
    (folder / "numbers.tsv").write_text("".join(lengths), encoding="utf-8")
    ends = "".join(f"{' '.join(line)}\t1 {len(line)} 1\n" for line in lines)
    (folder / "words.tsv").write_text(ends, encoding="utf-8")
    return folder
