"""Every two settings of a mechanism, in every task and model: trained for two steps, or refused before any reading."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import combinations, product
from random import Random
from typing import Any, NamedTuple

import pytest
import torch
from tests.pairs import fast
from torch import Tensor

from qkv.errors import ConfigError
from qkv.nn.first_batch import start_from_first_batch
from qkv.normalizers.catalog import NORMALIZERS
from qkv.scores.catalog import SCORES
from qkv.settings import defaults_of
from qkv.tasks.classify import recipe as classify
from qkv.tasks.generate import recipe as generate
from qkv.tasks.point import recipe as point
from qkv.tasks.recipe import AnyRecipe
from qkv.tasks.run import first_objective
from qkv.tasks.tag import recipe as tag
from qkv.tasks.translate import recipe as translate

FEW = 10
"""Combinations of a model in a quick run; all of them are thousands."""
Values = Mapping[str, tuple[Any, ...]]

RECIPES: Mapping[str, AnyRecipe] = {
    "translate": translate.RECIPE,
    "generate": generate.RECIPE,
    "classify": classify.RECIPE,
    "tag": tag.RECIPE,
    "point": point.RECIPE,
}
SCORED = (*SCORES, "location", "none")
POSITIONS = ("sinusoidal", "rotary", "alibi", "relative", "learned", "none")
CELLS = ("gru", "lstm", "rnn")
MECHANISM: Values = {
    "score": SCORED,
    "normalizer": tuple(NORMALIZERS),
    "sinks": (True,),
    "alpha": (1.25, "learned"),
    "bandwidth": (30.0,),
    "power": (3.0,),
    "heads": (1, 2),
    "window": (1,),
    "positions": POSITIONS,
}
TRANSLATE: Values = {
    **MECHANISM,
    "encoder": ("transformer", *CELLS),
    "encoder_layers": (1, 2),
    "decoder_layers": (1, 2),
    "memory": ("split",),
    "wiring": ("luong",),
    "copy": ("joint", "mixture"),
    "alignment": ("monotonic-0", "monotonic-1"),
    "cross_score": SCORED,
    "cross_normalizer": tuple(NORMALIZERS),
    "encoder_score": SCORED,
    "encoder_normalizer": tuple(NORMALIZERS),
    "encoder_heads": (1, 2),
}
GENERATE: Values = {**MECHANISM, "layers": (1, 2), "key_heads": (1,)}
LABEL: Values = {**MECHANISM, "layers": (1, 2), "pool": ("attention", "mean")}
POINT: Values = {
    "decoder": CELLS,
    "score": (*SCORED,),
    "layers": (1, 2),
    "heads": (1, 2),
    "once": (False,),
}
NARROW = {"width": 8, "feed_forward": 8}
DEEP = {**NARROW, "heads": 2}
STATES = {"hidden": 8, "embedding": 8, "attention": 4}


class Model(NamedTuple):
    """A model of a task.

    Attributes:
        task: the task.
        base: the settings of all its combinations.
        values: the settings that are combined.
    """

    task: str
    base: Mapping[str, Any]
    values: Values


MODELS = {
    "translate-transformer": Model("translate", {"model": "transformer", **DEEP, "encoder_layers": 1}, TRANSLATE),
    **{f"translate-{cell}": Model("translate", {"model": cell, **STATES}, TRANSLATE) for cell in CELLS},
    "translate-transformer-gru": Model("translate", {"model": "gru", "encoder": "transformer", **STATES}, TRANSLATE),
    "generate-transformer": Model("generate", {**DEEP, "layers": 1, "context": 4}, GENERATE),
    **{f"generate-{cell}": Model("generate", {"model": cell, "width": 8, "context": 4}, GENERATE) for cell in CELLS},
    **{
        f"{task}-{encoder}": Model(task, {"model": encoder, **NARROW}, LABEL)
        for task in ("classify", "tag")
        for encoder in ("transformer", "none", *CELLS)
    },
    **{
        f"point-{encoder}": Model("point", {"model": encoder, "width": 8, "attention": 4}, POINT)
        for encoder in ("transformer", *CELLS)
    },
}


def pairs(model: Model) -> Iterator[dict[str, Any]]:
    """Every value of every setting beside every value of every other."""
    free = {name: values for name, values in model.values.items() if name not in model.base or name == "heads"}
    for one, other in combinations(free, 2):
        for first in free[one]:
            for second in free[other]:
                yield {one: first, other: second}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """What each task reads, with its tables of files and tokens."""
    folder = tmp_path_factory.mktemp("texts")
    written = {
        "translate": "a b c\tc b a\na d\td a\nb\tb\n" * 4,
        "generate": "to be or not to be, that is the question\n" * 3,
        "classify": "good\ta fine film\nbad\ta dull film\n" * 8,
        "tag": "the O\ncat B\n\na O\ndog B\n\n" * 6,
        "point": "1 3 2\t2\n9 4\t1\n5 6\t2\n" * 6,
    }
    found = {}
    for task, text in written.items():
        path = folder / task
        path.write_text(text)
        files: dict[str, Any] = {"text": path, "valid_text": path} if task == "generate" else {"data": path}
        if "valid_data" in defaults_of(RECIPES[task].settings.tables["data"]):
            files["valid_data"] = path
        tables: dict[str, Any] = {"data": files, "training": {"batch_tokens": 24}}
        if "tokenizer" in RECIPES[task].settings.tables:
            tables["tokenizer"] = {"tokenizer": "char", "minimum": 1}
        base = {"context": 4} if task == "generate" else {}
        read = RECIPES[task].read(RECIPES[task].load_settings({**tables, "model": base}), None)
        found[task] = (tables, read)
    return found


def trains(recipe: AnyRecipe, table: Mapping[str, Any], tables: Mapping[str, Any], text: Any) -> bool:
    """Whether two steps were taken; False if the settings were refused, by the name of one of them."""
    chosen = {**tables, "model": table}
    if table.get("copy", "none") != "none":
        chosen["training"] = {**tables["training"], "label_smoothing": 0.0}
    refused = None
    try:
        settings = recipe.load_settings(chosen)
    except ConfigError as error:
        refused = str(error)
    if refused is not None:
        named = re.match(r"(\w+): expected .+; got .+\. \S", refused)
        assert named is not None, refused
        assert named[1] in {*table, "model"}, refused
        return False
    torch.manual_seed(0)
    task = replace(text, chosen=settings)
    model = task.build()
    start_from_first_batch(model, lambda: first_objective(task, model, settings.training))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for places in task.batches(tokens=settings.training.batch_tokens, seed=0, epoch=0)[:2]:
        optimizer.zero_grad()
        loss, count = task.objective(model, task.collate(places, torch.device("cpu")))
        (loss / count).backward()
        optimizer.step()
        assert bool(loss.isfinite())
    assert all(bool(weight.isfinite().all()) for weight in model.parameters())
    sees_hooks(model, lambda: task.objective(model, task.collate(places, torch.device("cpu")))[0])
    return True


def sees_hooks(model: torch.nn.Module, objective: Callable[[], Tensor]) -> None:
    """Expect a hook on the whole model to run, and the loss to be the same whether the model is called or read."""
    called: list[bool] = []
    with torch.no_grad():
        torch.manual_seed(0)
        loss = objective()
        handle = model.register_forward_hook(lambda *_: called.append(True))
        torch.manual_seed(0)
        torch.testing.assert_close(objective(), loss, rtol=1e-4, atol=1e-4)
        handle.remove()
    assert called


def check(name: str, texts: Mapping[str, Any], chosen: list[dict[str, Any]]) -> None:
    model = MODELS[name]
    recipe, (tables, text) = RECIPES[model.task], texts[model.task]
    outcomes = set()
    for settings in ({}, *chosen):
        try:
            outcomes.add(trains(recipe, {**model.base, **settings}, tables, text))
        except Exception as error:
            error.add_note(f"{name}: {settings}")
            raise
    assert outcomes == {True, False}, "some, such as the defaults, train, and some are refused"


@pytest.mark.parametrize("name", MODELS)
def test_two_settings_train_or_are_refused_before_data_are_read(name: str, texts: Mapping[str, Any]) -> None:
    """A sample; all in the slow test below."""
    found = list(pairs(MODELS[name]))
    check(name, texts, Random(len(found)).sample(found, min(FEW, len(found))))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_any_two_settings_train_or_are_refused_before_data_are_read(name: str, texts: Mapping[str, Any]) -> None:
    check(name, texts, list(pairs(MODELS[name])))


POSITIONED = [name for name, model in MODELS.items() if "positions" in model.values]


# Which positions a model takes does not depend on the kind of its cells.
@pytest.mark.parametrize("name", fast(POSITIONED, *(name for name in POSITIONED if name[-4:] not in ("lstm", "-rnn"))))
def test_positions_that_a_message_suggests_are_accepted(name: str, texts: Mapping[str, Any]) -> None:
    model = MODELS[name]
    recipe, (tables, _) = RECIPES[model.task], texts[model.task]

    @cache
    def refusal(score: Any, normalizer: Any, positions: str) -> str:
        table = {**model.base, "score": score, "normalizer": normalizer, "positions": positions}
        try:
            recipe.load_settings({**tables, "model": table})
        except ConfigError as error:
            return str(error)
        return ""

    for score, normalizer, positions in product(SCORES, NORMALIZERS, POSITIONS):
        refused = refusal(score, normalizer, positions)
        said = re.match(r"positions: expected (sinusoidal[\w, ]+?)(?: with .*)?; got", refused)
        for suggested in re.split(", | or ", said[1]) if said else ():
            answer = refusal(score, normalizer, suggested)
            assert not answer.startswith("positions"), (model.base, score, normalizer, suggested)
