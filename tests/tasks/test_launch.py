"""Every kind of model trained by several processes: the checkpoint of one, byte for byte."""

from pathlib import Path
from typing import Any

import pytest
from tests.pairs import fast
from tests.training.together import together

from qkv.tasks.classify import recipe as classify
from qkv.tasks.generate import recipe as generate
from qkv.tasks.run import train_run
from qkv.tasks.translate import recipe as translate

pytestmark = pytest.mark.forks

WORDS = ["der", "die", "das", "hund", "katze", "ball", "rot", "alt", "klein", "sieht", "sucht", "haus"]
PAIRS = "".join(f"{a} {b} {c}\t{c} {b} {a}\n" for a in WORDS[:5] for b in WORDS[5:9] for c in WORDS[9:])
TEXTS = "".join(f"{'good' if a < b else 'bad'}\t{a} {b} {c}\n" for a in WORDS[:6] for b in WORDS[:6] for c in WORDS[:3])
TRANSFORMER = {"width": 16, "heads": 2, "feed_forward": 16, "dropout": 0.2}
UPDATES = {"batch_tokens": 96, "accumulate": 4, "warmup": 2, "validate_every": 4}
CASES: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "transformer": (translate.RECIPE, {"model": "transformer", **TRANSFORMER}, {}),
    "muon": (translate.RECIPE, {"model": "transformer", **TRANSFORMER}, {"optimizer": "muon"}),
    "additive": (translate.RECIPE, {"model": "gru", "width": 16, "dropout": 0.2}, {}),
    "language": (generate.RECIPE, {**TRANSFORMER, "layers": 1, "context": 16}, {}),
    "classifier": (classify.RECIPE, {"width": 8, "dropout": 0.3}, {}),
}


@pytest.mark.parametrize(
    ("steps", "sizes"), [(4, (1, 4)), pytest.param(40, (1, 2, 4), marks=pytest.mark.slow)], ids=["few", "many"]
)
@pytest.mark.parametrize("name", fast(CASES, "muon", "language"))
def test_processes_give_the_checkpoint_of_one(tmp_path: Path, name: str, steps: int, sizes: tuple[int, ...]) -> None:
    recipe, model, more = CASES[name]
    text = tmp_path / "text"
    text.write_text({"language": PAIRS * 2, "classifier": TEXTS}.get(name, PAIRS), encoding="utf-8")
    tables = {
        "data": {"text" if name == "language" else "data": text},
        "tokenizer": {"tokenizer": "char" if name == "language" else "word"},
        "model": model,
        "training": {**UPDATES, **more, "steps": steps},
    }

    def trained(size: int) -> str:
        settings = recipe.load_settings(tables)
        return str(train_run(recipe, settings, tmp_path / f"run-{size}").digest)

    digests = [together(tmp_path, size, lambda _, n=size: trained(n))[0] for size in sizes]
    assert len(digests[0]) == 64
    assert digests == digests[:1] * len(sizes)
