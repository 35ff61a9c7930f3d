"""From text files to a translator: end to end on a task that a tiny model learns."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import qkv
from qkv.data.corpus import Pair
from qkv.data.marked_pieces import joined_words
from qkv.errors import CheckpointError, ConfigError, DataError
from qkv.metrics.translation import bleu
from qkv.tasks.drawing import alignments
from qkv.tasks.evaluation import score
from qkv.tasks.load import load
from qkv.tasks.run import train_run
from qkv.tasks.translate.data import learn_tokenizers
from qkv.tasks.translate.predict import Translator
from qkv.tasks.translate.recipe import RECIPE
from qkv.tasks.translate.scoring import judge
from qkv.tasks.translate.settings import TranslateEvaluation, TranslateFiles, TranslateTokenizer

LETTERS = "abcdefgh"
WORDS = [first + second + third for first in LETTERS for second in LETTERS for third in LETTERS]
MODELS = {
    "gru": {"model": "gru", "embedding": 32, "hidden": 32, "attention": 32, "dropout": 0.0},
    "transformer": {"model": "transformer", "width": 32, "heads": 2, "feed_forward": 64, "dropout": 0.0},
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TranslateFiles:
    folder = tmp_path_factory.mktemp("text")
    for name, words in (("train", WORDS[::2] + WORDS[1::4]), ("valid", WORDS[3::16])):
        pairs = "".join(f"{word}\t{word.upper()[::-1]}\n" for word in words)
        (folder / f"{name}.tsv").write_text(pairs, encoding="utf-8")
    return TranslateFiles(data=folder / "train.tsv", valid_data=folder / "valid.tsv")


def tables(files: TranslateFiles, model: str, steps: int) -> dict[str, dict[str, object]]:
    rate = 0.01 if model == "gru" else 0.005
    training = {"steps": steps, "batch_tokens": 512, "learning_rate": rate, "warmup": 20, "label_smoothing": 0.0}
    training |= {"validate_every": 60, "log_every": 20, "monitor": "exact_match"}
    data = {"data": files.data, "valid_data": files.valid_data}
    return {"data": data, "tokenizer": {"tokenizer": "char"}, "model": MODELS[model], "training": training}


STEPS = {"gru": 100, "transformer": 40}


@pytest.fixture(scope="module", params=sorted(MODELS))
def run(request: pytest.FixtureRequest, files: TranslateFiles, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / request.param
    outcome = train_run(RECIPE, RECIPE.load_settings(tables(files, request.param, STEPS[request.param])), out)
    assert outcome.exit_code == 0
    return out


@pytest.mark.parametrize("run", ["gru"], indirect=True)
def test_the_task_is_learned(run: Path) -> None:
    assert_learned(run)


@pytest.mark.slow
def test_a_transformer_learns_the_task_too(files: TranslateFiles, tmp_path: Path) -> None:
    assert train_run(RECIPE, RECIPE.load_settings(tables(files, "transformer", 300)), tmp_path / "run").exit_code == 0
    assert_learned(tmp_path / "run")


def assert_learned(run: Path) -> None:
    translator = load(run)
    unseen = WORDS[11::16]  # like the validation words, but different ones
    right = sum(text == word.upper()[::-1] for word, text in zip(unseen, translator.translate(unseen), strict=True))
    assert right >= len(unseen) / 2, "chance is one in five hundred"


def test_answers_keep_their_order_and_do_not_depend_on_the_batch(run: Path) -> None:
    translator = qkv.load(run)
    lines = [*WORDS[:40:3], "", "a", *WORDS[400:440:3]]
    together = translator.translate(lines)
    assert together[len(WORDS[:40:3])] == "", "an empty line stays empty"
    assert together == [translator.translate([line])[0] for line in lines]
    assert translator.translate(lines[::-1]) == together[::-1]


def test_attention_rows_are_what_each_target_token_attended_to(run: Path) -> None:
    found = load(run).translate_fully(["abc", ""], attention=True)
    weights = found[0].weights
    assert weights is not None
    assert weights.shape == (len(found[0].target_tokens), 3)
    torch.testing.assert_close(weights.sum(-1), torch.ones(len(weights)))
    assert found[1].weights is None
    assert [drawn.source for drawn in alignments(found)] == [("a", "b", "c")]


def test_the_figure_after_training_is_the_figure_in_training(run: Path, files: TranslateFiles) -> None:
    kept = {line["step"]: line for line in _validations(run)}
    step = max(kept, key=lambda at: kept[at]["exact_match"])
    figures = score(run, TranslateEvaluation(data=files.valid_data)).figures
    for figure in figures:
        assert figure.value == pytest.approx(kept[step][figure.name], abs=1e-9)


def _validations(run: Path) -> list[dict[str, float]]:
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == "validation"]


def test_the_same_command_again_has_nothing_left_to_do_and_changes_nothing(run: Path, files: TranslateFiles) -> None:
    before = {path: path.read_bytes() for path in sorted(run.rglob("model.safetensors"))}
    train_run(RECIPE, RECIPE.load_settings(tables(files, run.name, STEPS[run.name])), run)
    assert {path: path.read_bytes() for path in sorted(run.rglob("model.safetensors"))} == before


def test_settings_come_back_as_they_were_shown(files: TranslateFiles) -> None:
    settings = RECIPE.load_settings(tables(files, "gru", 5))
    assert RECIPE.load_settings(RECIPE.show_settings(settings)) == settings


def test_a_line_that_is_too_long_is_named(run: Path) -> None:
    translator = Translator(load(run).model, load(run).tokenizer, longest=4)
    with pytest.raises(DataError, match="line 2: expected at most 4 tokens; got 5"):
        translator.translate(["abcd", "abcde"])


def test_a_model_without_attention_has_none_to_show(files: TranslateFiles, tmp_path: Path) -> None:
    given = tables(files, "gru", 2)
    given["model"] = {**MODELS["gru"], "score": "none"}
    train_run(RECIPE, RECIPE.load_settings(given), tmp_path / "run")
    translator = load(tmp_path / "run")
    assert len(translator.translate_fully(["abc"])) == 1
    with pytest.raises(ConfigError, match="a model with attention"):
        translator.translate_fully(["abc"], attention=True)


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="a folder without checkpoints"):
        load(tmp_path)


@pytest.mark.parametrize("older", [True, False])
def test_a_run_keeps_the_unicode_form_of_its_tokenizer(
    files: TranslateFiles, tmp_path: Path, older: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Runs of earlier versions have no form; they resume as they were."""
    given = tables(files, "gru", steps=1)
    form = "none" if older else "NFC"
    settings = RECIPE.load_settings({**given, "tokenizer": {"tokenizer": "char", "unicode": form}})
    train_run(RECIPE, settings, tmp_path / "run")
    if older:
        for config in tmp_path.glob("run/**/config.json"):
            assert '"unicode": "none"' in config.read_text()
    capsys.readouterr()
    resumed = RECIPE.load_settings({**given, "tokenizer": {"tokenizer": "char"}})
    assert resumed.tokenizer.unicode == "NFC"
    assert train_run(RECIPE, resumed, tmp_path / "run").step == 1
    assert ("unicode = none" in capsys.readouterr().err) is older


@pytest.mark.parametrize(
    "words",
    [TranslateTokenizer(tokenizer="char"), TranslateTokenizer(source_tokenizer="char", target_tokenizer="word")],
    ids=["one", "one each"],
)
def test_every_vocabulary_has_the_settings_of_the_tokenizer(words: TranslateTokenizer) -> None:
    words = replace(words, unicode="NFKC", lowercase=True, minimum=1)
    tokenizer = learn_tokenizers([Pair("ﬁN", "E\u0301", 1)], words)
    for vocabulary in (tokenizer.vocabulary, tokenizer.source.vocabulary):
        assert (vocabulary.unicode, vocabulary.lowercase) == ("NFKC", True)


HOW = {
    "subword-nmt": lambda words: " ".join(f"{word[:2]}@@ {word[2:]}" for word in words),
    "SentencePiece": lambda words: " ".join(f"▁{word[:2]} {word[2:]}" for word in words),
}
SAID = [["the", "houses", "burn", "down"], ["one", "singer", "comes", "down"], ["the", "singer", "burns", "houses"]]


@pytest.mark.parametrize("library", HOW)
def test_figures_of_pieces_are_those_of_words(library: str) -> None:
    """The references may be pieces or words; the pieces of a word give more n-grams than the word."""
    pieces = [HOW[library](words) for words in SAID]
    texts = [" ".join(words) for words in SAID]
    answers = [pieces[0], pieces[2], pieces[2]], [texts[0], texts[2], texts[2]]
    expected = judge(answers[1], [Pair("", text, 1) for text in texts])
    for references in (pieces, texts):
        figures = judge(answers[0], [Pair("", text, 1) for text in references])
        assert [figure.value for figure in figures] == [figure.value for figure in expected]
        assert all(figure.signature.endswith(f"|joined:{library}") for figure in figures)
    assert not any("joined" in figure.signature for figure in expected)


@pytest.mark.parametrize("library", HOW)
def test_a_table_of_pieces_is_scored_as_words(library: str, tmp_path: Path) -> None:
    rows = [f"{' '.join(words)}\t{HOW[library](words)}\n" for words in SAID]
    (tmp_path / "table.tsv").write_text("".join(rows) * 4, encoding="utf-8")
    columns = {"data": tmp_path / "table.tsv", "source_sep": " ", "target_sep": " "}
    training = {"steps": 30, "batch_tokens": 512, "learning_rate": 0.02, "warmup": 2, "validate_every": 30}
    tables = {"data": {**columns, "valid_data": columns["data"]}, "model": MODELS["gru"], "training": training}
    train_run(RECIPE, RECIPE.load_settings(tables), tmp_path / "run")
    translator = qkv.load(tmp_path / "run")
    scored = translator.score_files(TranslateEvaluation(data=columns["data"]))
    written = list(scored.lines)
    assert any(mark in text for text in written for mark in ("@@", "▁")), "answers are written as the table has them"
    kept = _validations(tmp_path / "run")[-1]
    expected = bleu(joined_words(written), [" ".join(words) for words in SAID] * 4)
    assert {figure.name: figure.value for figure in scored.figures}["bleu"] == kept["bleu"] == expected.value
