"""Pointing at elements, from lines to answers."""

import shutil
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from tests.tasks.reading import read

import qkv
from qkv.checkpoint.contents import Contents
from qkv.checkpoint.folder import load as load_checkpoint
from qkv.checkpoint.rotation import mark_best
from qkv.errors import CheckpointError, ConfigError, DataError
from qkv.recording.recorder import record
from qkv.tasks.evaluation import score
from qkv.tasks.load import load
from qkv.tasks.origin import Origin, open_origin
from qkv.tasks.point.pointing import judge_positions, stack
from qkv.tasks.point.predict import LAYER, ElementPointer
from qkv.tasks.point.recipe import RECIPE
from qkv.tasks.point.settings import PointEvaluation
from qkv.tasks.run import train_run
from qkv.tasks.runs import Trained, load_trained

_TRAINING = {"steps": 150, "warmup": 10, "learning_rate": 0.02, "validate_every": 75, "batch_tokens": 512}
_SIZES = {"width": 16, "attention": 16, "layers": 1}
_MODEL = {**_SIZES, "heads": 2}


def _numbers(path: Path, count: int = 300, seed: int = 0) -> Path:
    """Where the largest of three numbers of two columns is; the second column is noise."""
    random = Random(seed)
    rows = []
    for _ in range(count):
        given = [(random.randrange(1000), random.randrange(9)) for _ in range(3)]
        best = max(range(3), key=lambda place: given[place][0]) + 1
        rows.append(f"{' '.join(f'{a},{b}' for a, b in given)}\t{best}\n")
    path.write_text("".join(rows))
    return path


def _words(path: Path, count: int = 200, seed: int = 0) -> Path:
    """The span between two brackets."""
    random = Random(seed)
    rows = []
    for _ in range(count):
        words = [random.choice("abcd") for _ in range(random.randint(1, 4))]
        first = random.randint(0, len(words))
        words[first:first] = ["("]
        last = random.randint(first + 1, len(words))
        words[last:last] = [")"]
        rows.append(f"{' '.join(words)}\t{first + 1} {last + 1}\n")
    path.write_text("".join(rows))
    return path


@pytest.fixture(scope="module")
def largest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("largest")
    tables = {"data": {"data": _numbers(folder / "l.tsv")}, "model": _MODEL, "training": _TRAINING}
    train_run(RECIPE, RECIPE.load_settings(tables), folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def spans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("spans")
    model = {**_SIZES, "model": "gru", "decoder": "gru", "score": "squared_distance"}
    tables = {"data": {"data": _words(folder / "s.tsv")}, "model": model, "training": _TRAINING}
    train_run(RECIPE, RECIPE.load_settings(tables), folder / "run")
    return folder / "run"


def test_the_largest_number_is_found_whatever_its_scale(largest: Path, tmp_path: Path) -> None:
    figures = {
        figure.name: figure.value
        for figure in score(largest, PointEvaluation(data=_numbers(tmp_path / "u.tsv", seed=1))).figures
    }
    assert figures["exact"] > 90
    assert load(largest).point(["10,1 900,2 30,3", ""]) == [(2,), ()]


def test_spans_of_words_are_found(spans: Path, tmp_path: Path) -> None:
    unseen, out = _words(tmp_path / "u.tsv", seed=1), tmp_path / "out"
    figures = score(spans, PointEvaluation(data=unseen, out=out)).figures
    assert [figure.name for figure in figures] == ["positions", "exact"]
    assert figures[1].value > 80
    truth = [line.split("\t")[1] for line in unseen.read_text().splitlines()]
    shared = sum(one == other for one, other in zip(out.read_text().splitlines(), truth, strict=True))
    assert 100 * shared / len(truth) == pytest.approx(figures[1].value)
    (found,) = load(spans).point_fully(["b ( never c ) d"])
    assert found.chosen == ("(", ")"), "an unseen word is unknown, not an error"


def test_weights_are_the_probabilities_of_the_answer(largest: Path) -> None:
    model = load(largest)
    assert isinstance(model, ElementPointer)
    (found,) = model.point_fully(["10,1 900,2 30,3"], attention=True)
    assert found.weights is not None
    assert found.weights.shape == (2, 4)
    torch.testing.assert_close(found.weights.sum(-1), torch.ones(2))
    chances = found.weights[[0, 1], [*found.positions, 0]]
    assert float(chances.log().sum()) == pytest.approx(found.score, abs=1e-4)


def test_answers_do_not_depend_on_the_batch(spans: Path) -> None:
    model = load(spans)
    lines = ["a ( b )", "( )", "a b c ( d c b a )", ""]
    for beam in (1, 3):
        assert model.point(lines, beam=beam) == [model.point([line], beam=beam)[0] for line in lines]


@pytest.mark.parametrize(
    ("encoder", "score"),
    [
        pytest.param(encoder, score, marks=[] if turn == index % 3 else pytest.mark.slow)
        for turn, encoder in enumerate(("transformer", "lstm", "rnn"))
        for index, score in enumerate(("additive", "bilinear", "dot", "scaled_dot", "cosine", "squared_distance"))
    ],
)
def test_every_score_trains_with_every_encoder(encoder: str, score: str, tmp_path: Path) -> None:
    model = {"model": encoder, "score": score, "width": 8, "attention": 8, "layers": 1}
    data = {"data": _numbers(tmp_path / "l.tsv", count=40)}
    settings = RECIPE.load_settings({"data": data, "model": model, "training": {"steps": 3, "warmup": 1}})
    lines = RECIPE.read(settings, None)
    train_run(RECIPE, settings, tmp_path / "run")
    loaded = load(tmp_path / "run").model
    batch = stack(lines.train[:4], None, torch.device("cpu"))
    with record(loaded) as trace:
        found = loaded(batch.elements, batch.lengths, batch.previous)
    torch.testing.assert_close(trace.weights(LAYER), found.exp())
    found[found > -torch.inf].sum().backward()
    assert all(weight.grad is not None and bool(weight.grad.isfinite().all()) for weight in loaded.parameters())


def test_a_resumed_run_has_the_same_bits(tmp_path: Path) -> None:
    data = {"data": _words(tmp_path / "s.tsv", count=60)}
    training = {**_TRAINING, "steps": 6, "validate_every": 3, "batch_tokens": 128}
    settings = RECIPE.load_settings({"data": data, "model": {**_MODEL, "dropout": 0.1}, "training": training})
    train_run(RECIPE, settings, tmp_path / "run")
    whole = load_checkpoint(tmp_path / "run" / "step-00000006").model
    shutil.rmtree(tmp_path / "run" / "step-00000006")
    mark_best(tmp_path / "run", 3)
    train_run(RECIPE, settings, tmp_path / "run")
    again = load_checkpoint(tmp_path / "run" / "step-00000006").model
    assert all(torch.equal(tensor, again[name]) for name, tensor in whole.items())


def test_a_run_starts_from_another_with_its_words(spans: Path, tmp_path: Path) -> None:
    model = {**_SIZES, "model": "gru", "decoder": "gru", "score": "squared_distance"}
    data = {"data": _words(tmp_path / "s.tsv", seed=5, count=60)}
    settings = RECIPE.load_settings(
        {"data": data, "model": model, "training": {**_TRAINING, "steps": 1, "learning_rate": 1e-9}}
    )
    train_run(RECIPE, settings, tmp_path / "run", origin=open_origin(spans, "point"))
    lines = ["a ( b ) c", "( d )"]
    assert load(tmp_path / "run").point(lines) == load(spans).point(lines)


def test_words_are_those_of_the_run_to_start_from(tmp_path: Path) -> None:
    lines = read("point", data={"data": [(["b", "a"], [2, 1]), (["a", "b"], [1, 2])] * 12})
    contents = Contents({}, {"words": ["<unk>", "b", "c", "a", "d"]})
    ours = lines.adapted(Origin(Trained(tmp_path, contents, None, "point"), ""))
    assert (ours.features, ours.vocabulary.ids(["a", "b", "e"])) == (5, [3, 1, 0])
    assert ours.build().config.features == 5


def test_a_model_of_numbers_gives_no_tokenizer(largest: Path) -> None:
    with pytest.raises(CheckpointError, match="expected a checkpoint with a tokenizer; got one without"):
        open_origin(None, "translate", largest)


def test_positions_are_judged_in_order_as_a_cycle_or_as_a_set() -> None:
    found, truth = [[1, 2, 3], [2, 3, 1], [3, 2, 1], [1], []], [[1, 2, 3]] * 5
    exact = {order: judge_positions(found, truth, order)[1].value for order in ("sequence", "cycle", "set")}  # type: ignore[arg-type]
    assert exact == {"sequence": 20, "cycle": 40, "set": 60}
    assert judge_positions(found, truth)[0].value == pytest.approx(100 * 5 / 15)


def test_an_element_twice_needs_repeats(tmp_path: Path) -> None:
    path = tmp_path / "t.tsv"
    path.write_text("1 2\t1\n3 4\t1 1\n5 6\t2\n" * 4)
    with pytest.raises(DataError, match=r"t\.tsv:\d+: expected each position at most once; got 1 twice.*repeats"):
        read("point", data={"data": path})
    settings = RECIPE.load_settings(
        {"data": {"data": path}, "model": {**_MODEL, "once": False}, "training": {"steps": 2, "warmup": 1}}
    )
    train_run(RECIPE, settings, tmp_path / "run")
    (found,) = load(tmp_path / "run").point_fully(["3 4"])
    assert len(found.positions) <= 2, "the longest answer of training"


def test_elements_of_another_width_are_named(largest: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="line 2: expected a vector of 2 numbers as element 1; got 1 in '5'"):
        load(largest).point(["1,2", "5"])
    (tmp_path / "x.tsv").write_text("5\t1\n")
    with pytest.raises(DataError, match=r"x\.tsv:1: expected a vector of 2 numbers"):
        score(largest, PointEvaluation(data=tmp_path / "x.tsv"))


def test_settings_go_around() -> None:
    settings = RECIPE.load_settings({"data": {"data": "x"}, "model": {"model": "lstm"}})
    assert (settings.model.decoder, settings.model.layers) == ("lstm", 1)
    assert RECIPE.load_settings(RECIPE.show_settings(settings)) == settings


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"modell": {}}, 'Did you mean "model"?'),
        ({"model": {"features": 3}}, "The training lines decide it"),
        ({"model": {"model": "gur"}}, 'Did you mean "gru"?'),
        ({"model": {"heads": 3}}, "heads: expected a divisor of width"),
        ({"model": {"model": "gru", "heads": 2}}, "heads: expected a Transformer; got 2 with gru"),
        ({"model": {"score": "epanechnikov"}}, "score: expected"),
        ({"data": {"order": "cycel"}}, 'Did you mean "cycle"?'),
        ({"data": {"vocabulary": 1}}, "vocabulary: expected an integer, at least 2"),
    ],
)
def test_bad_settings_are_named(tables: dict, message: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(ConfigError) as raised:
        RECIPE.load_settings(tables)
    assert message in str(raised.value)


@pytest.mark.parametrize("words", [0.5, "ab", {"a": 1}, ["a", 1], [None]])
def test_words_that_are_no_list_of_texts_are_refused(words: object, tmp_path: Path) -> None:
    data = [("a b", "2 1"), ("b a", "1 2"), ("a", "1")]
    qkv.train("point", data=data, elements="words", out=tmp_path / "run", steps=1, width=8, quiet=True)
    trained = load_trained(tmp_path / "run")
    contents = replace(trained.contents, config={**trained.contents.config, "words": words})
    with pytest.raises(CheckpointError):
        ElementPointer.of(trained._replace(contents=contents))
