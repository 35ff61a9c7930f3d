"""What is trained follows its settings: the smoothing, the rows of a batch, and how answers are judged."""

from typing import Any

import pytest
import torch

from qkv.tasks.catalog import recipe_of

PAIRS = [(f"{a} {b}", f"{b} {a}") for a in "abcdef" for b in "abcdef"]
TABLES: dict[str, dict[str, dict[str, Any]]] = {
    "translate": {"data": {"data": PAIRS, "holdout": 4}, "model": {"model": "gru", "width": 8}},
    "classify": {"data": {"data": [(second[0], first) for first, second in PAIRS]}, "model": {"width": 8}},
    "generate": {
        "data": {"text": [first for first, _ in PAIRS]},
        "model": {"model": "gru", "width": 8, "context": 4},
    },
    "point": {"data": {"data": [(["b", "a"], [2, 1]), (["a", "b"], [1, 2])] * 12}, "model": {"width": 8}},
}


def job(task: str, data: dict[str, Any], **training: object) -> tuple[Any, Any]:
    recipe = recipe_of(task)
    tables = TABLES[task]
    settings = recipe.load_settings({**tables, "data": {**tables["data"], **data}, "training": training})
    job = recipe.read(settings, None)
    torch.manual_seed(0)
    return job, job.build().eval()


@pytest.mark.parametrize("task", TABLES)
def test_smoothing_changes_the_loss_and_rows_are_those_of_a_batch(task: str) -> None:
    sharp, smooth = (job(task, {}, label_smoothing=smoothing, batch_size=3) for smoothing in (0.0, 0.5))
    batches = list(smooth[0].batches(tokens=4096, seed=0, epoch=0))
    assert max(map(len, batches)) == 3
    cpu = torch.device("cpu")
    losses = [one.objective(model, one.collate(batches[0], cpu))[0].item() for one, model in (sharp, smooth)]
    assert abs(losses[0] - losses[1]) > 1e-3


def test_a_validation_judges_answers_as_asked() -> None:
    point, model = job("point", {"order": "set"})
    with torch.no_grad():
        _, exact, *_ = point.validate(model)
    assert (exact.name, exact.signature) == ("exact", "order:set")
