"""What is not held out for validation is learned: with few different examples, all of them; and always every label."""

from pathlib import Path
from typing import Any

import pytest
from tests.pairs import in_turn
from tests.tasks.reading import read

import qkv
from qkv.metrics.translation import bleu

_LOOP = {"learning_rate": 0.02, "warmup": 5, "validate_every": 20, "log_every": 20, "dropout": 0.0}
_SMALL: dict[str, dict[str, Any]] = {
    "translate": {"model": "gru", "width": 32, "tokenizer": "word", "batch_tokens": 128, "steps": 60},
    "classify": {"model": "none", "width": 16, "batch_tokens": 128, "steps": 60},
    "tag": {"model": "none", "width": 16, "tokenizer": "word", "batch_tokens": 128, "steps": 60},
    "point": {"model": "gru", "width": 16, "layers": 1, "batch_tokens": 128, "steps": 80},
    "generate": {"width": 16, "heads": 1, "layers": 1, "context": 16, "batch_tokens": 128},
}
_EXAMPLES: dict[str, list[Any]] = {
    "translate": [("ein Hund", "a dog"), ("eine Katze", "a cat"), ("zwei Vögel", "two birds")],
    "classify": [("good", "a fine film"), ("bad", "a dull film"), ("mixed", "a film")],
    "tag": [[("Ada", "PERSON"), ("wrote", "O")], [("7", "NUMBER")], [("Bonn", "PLACE"), ("is", "O")]],
    "point": [("3 1 2", "2 3 1"), ("5 9", "1 2"), ("1 7 4 2", "1 4 3 2")],
}


def answers(task: str, model: Any) -> list[Any]:
    """What a model makes of the inputs of the examples."""
    examples = _EXAMPLES[task]
    match task:
        case "translate":
            return list(zip([one for one, _ in examples], model.translate([one for one, _ in examples]), strict=True))
        case "classify":
            texts = [text for _, text in examples]
            return list(zip(model.classify(texts), texts, strict=True))
        case "tag":
            words = [[word for word, _ in sentence] for sentence in examples]
            return [list(zip(one, tags, strict=True)) for one, tags in zip(words, model.tag(words), strict=True)]
    found = model.point([one for one, _ in examples])
    return [(one, " ".join(map(str, each))) for (one, _), each in zip(examples, found, strict=True)]


@pytest.mark.parametrize(
    ("task", "copies"),
    [
        pytest.param(task, copies, marks=[] if copies == often else pytest.mark.slow)
        for task, often in zip(_EXAMPLES, (12, 1, 12, 1), strict=True)
        for copies in (1, 12)
    ],
)
def test_few_different_examples_are_all_learned(
    task: str, copies: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {**_LOOP, **_SMALL[task], **({"minimum": 1} if task in ("translate", "tag", "classify") else {})}
    run = qkv.train(task, data=_EXAMPLES[task] * copies, out=tmp_path / "run", **settings)
    assert "held out" in capsys.readouterr().err
    assert answers(task, run.load()) == _EXAMPLES[task]


def test_a_label_of_one_example_is_never_held_out(tmp_path: Path) -> None:
    rows = [("common", f"text {n}") for n in range(40)] + [(f"rare {n}", f"other {n}") for n in range(40)]
    classified, tagged = tmp_path / "c.tsv", tmp_path / "t.conll"
    classified.write_text("".join(f"{label}\t{text}\n" for label, text in rows))
    tagged.write_text("\n".join(f"{text.replace(' ', '_')}\t{label.replace(' ', '_')}\n" for label, text in rows))
    for seed in range(5):
        for task, path in (("classify", classified), ("tag", tagged)):
            text = read(task, data={"data": path}, tokenizer={"tokenizer": "word"}, training={"seed": seed})
            assert len(text.labels) == 41
            assert len(text.train) == 72
            assert len(text.valid) == 8


def test_equal_texts_stay_on_one_side(tmp_path: Path) -> None:
    path = tmp_path / "c.tsv"
    path.write_text("".join(f"{'ab'[n % 2]}\ttext {n}\n" for n in range(30)) * 3)
    text = read("classify", data={"data": path}, tokenizer={"tokenizer": "word", "minimum": 1})
    assert len(text.train) + len(text.valid) == 90
    assert not {item.ids for item in text.train} & {item.ids for item in text.valid}


def test_a_number_of_pairs_that_cannot_be_kept_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.tsv"
    path.write_text("a b\tb a\nc d\td c\n" * 30)
    text = read("translate", data={"data": path, "holdout": 2}, tokenizer={"tokenizer": "word"})
    assert (len(text.train), len(text.valid)) == (30, 30)
    assert "30 pairs are held out, not 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("task", "repeated"), in_turn(("translate", "classify", "tag", "point", "generate"), (0, 1, 9, 30))
)
def test_validation_inputs_that_are_trained_on_are_counted(
    task: str, repeated: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = {
        "translate": "ein {0}\ta {0}\n",
        "classify": "{1}\ttext {0}\n",
        "tag": "the b\nw{0} {1}\n\n",
        "point": "{0} 3000\t1 2\n",
        "generate": "line {0} of a text\n",
    }[task]
    train, valid = tmp_path / "train", tmp_path / "valid"
    train.write_text("".join(line.format(n, "ab"[n % 2]) for n in range(60)))
    valid.write_text("".join(line.format(n if n < repeated else 100 + n, "ab"[n % 2]) for n in range(30)))
    name = "text" if task == "generate" else "data"
    small = {**_LOOP, **_SMALL[task], "steps": 1, name: train, f"valid_{name}": valid}
    qkv.train(task, out=tmp_path / "run", **small)
    said = [line for line in capsys.readouterr().err.splitlines() if "figures say little" in line]
    if task == "generate":
        assert len(said) == (repeated == 30)
    else:
        assert [f"{repeated} of 30 validation" in line for line in said] == [True] * (repeated > 1)


@pytest.mark.parametrize(
    ("line", "words"), [("a {0}\ta {0}\n", "every target equals"), ("a {0}\tb\n", 'all 30 targets are "b"')]
)
def test_pairs_from_which_nothing_can_be_learned_are_reported(
    line: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.tsv"
    path.write_text("".join(line.format(n) for n in range(30)))
    read("translate", data={"data": path}, tokenizer={"tokenizer": "word"})
    assert f"{path}: {words}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("target", "monitor"), [("yes", "chrf"), ("a very big dog", "bleu"), ("no one.", "chrf"), ("Oh no !!", "bleu")]
)
def test_the_best_checkpoint_is_chosen_by_a_figure_that_can_change(target: str, monitor: str, tmp_path: Path) -> None:
    assert bool(bleu([target], [target]).value) is (monitor == "bleu")
    small = {**_LOOP, **_SMALL["translate"], "steps": 2}
    run = qkv.train("translate", data=[("x y", target), ("y x", "z")] * 9, out=tmp_path / "run", quiet=True, **small)
    assert run.outcome.best is not None
    assert run.outcome.best.name == monitor
