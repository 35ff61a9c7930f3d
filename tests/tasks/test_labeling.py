"""Labeling texts and words, from files to answers."""

from pathlib import Path
from random import Random

import pytest
import torch
from tests.tasks.reading import read

from qkv.checkpoint.contents import Contents
from qkv.errors import CheckpointError, ConfigError, DataError
from qkv.models.configs.reader import ReaderConfig
from qkv.models.reader import TextTagger
from qkv.tasks.classify.data import encode_words, read_texts
from qkv.tasks.classify.labeling import judge_labels, predict
from qkv.tasks.classify.predict import Classifier
from qkv.tasks.classify.recipe import RECIPE as CLASSIFY
from qkv.tasks.classify.settings import ClassifyEvaluation
from qkv.tasks.evaluation import score
from qkv.tasks.load import load
from qkv.tasks.origin import Origin
from qkv.tasks.run import train_run
from qkv.tasks.runs import Trained
from qkv.tasks.settings import TokenizerSettings
from qkv.tasks.tag.predict import Tagger
from qkv.tasks.tag.recipe import RECIPE as TAG
from qkv.tasks.tag.settings import TagEvaluation

_MODEL = {"model": "none", "width": 16, "dropout": 0.0, "word_dropout": 0.0}
_WORDS = TokenizerSettings(tokenizer="word")
_TRAINING = {"steps": 60, "warmup": 5, "learning_rate": 0.05, "validate_every": 30, "batch_tokens": 256}


def _films(path: Path, count: int = 120, seed: int = 0) -> Path:
    random = Random(seed)
    good, bad, rest = ("fine", "great", "lovely"), ("dull", "poor", "awful"), ("a", "film", "story", "the", ",")
    rows = []
    for number in range(count):
        words = [random.choice(rest) for _ in range(random.randint(1, 6))]
        words.insert(random.randint(0, len(words)), random.choice((bad, good)[number % 2]))
        rows.append(f"{('bad', 'good')[number % 2]}\t{' '.join(words)}\n")
    path.write_text("".join(rows), encoding="utf-8")
    return path


def _numbers(path: Path, count: int = 80, seed: int = 0) -> Path:
    """Digits are NUM, the word after one is AFTER, the rest O: the tag depends on the neighbor."""
    random = Random(seed)
    sentences = []
    for _ in range(count):
        words = [random.choice(("one", "12", "two", "7", "dog")) for _ in range(random.randint(1, 7))]
        tags = [
            "B-NUM" if w.isdigit() else "B-AFTER" if p.isdigit() else "O"
            for p, w in zip(["", *words], words, strict=False)
        ]
        sentences.append("".join(f"{word}\t{tag}\n" for word, tag in zip(words, tags, strict=True)))
    path.write_text("\n".join(sentences), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("films")
    tables = {"data": {"data": _films(folder / "films.tsv")}, "model": _MODEL, "training": _TRAINING}
    train_run(CLASSIFY, CLASSIFY.load_settings(tables), folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def tagger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("numbers")
    model = {**_MODEL, "model": "gru"}
    tables = {"data": {"data": _numbers(folder / "n.conll")}, "model": model, "training": _TRAINING}
    tables["tokenizer"] = {"tokenizer": "char"}
    train_run(TAG, TAG.load_settings(tables), folder / "run")
    return folder / "run"


def test_a_classifier_learns_which_words_decide(classifier: Path, tmp_path: Path) -> None:
    figures = score(classifier, ClassifyEvaluation(data=_films(tmp_path / "unseen.tsv", seed=1))).figures
    assert {figure.name: figure.value for figure in figures} == {"accuracy": 100.0, "macro_f1": 100.0}
    (found,) = load(classifier, task="classify").classify_fully(["the film , a lovely story"], attention=True)
    assert found.label == "good"
    assert list(found.probabilities) == ["good", "bad"]
    assert sum(found.probabilities.values()) == pytest.approx(1)
    assert found.weights is not None
    assert found.tokens[int(found.weights.argmax())] == "lovely"


def test_a_wide_part_tells_words_that_training_never_saw_by_their_runs(tmp_path: Path) -> None:
    rows = [f"{label}\t{word}{end}\n" for end in "abcdefgh" for label, word in (("bad", "dull"), ("good", "fine"))]
    (tmp_path / "films.tsv").write_text("".join(rows), encoding="utf-8")
    files = {"data": tmp_path / "films.tsv", "valid_data": tmp_path / "films.tsv"}
    tables = {"data": files, "training": _TRAINING, "tokenizer": {"lowercase": True}}
    train_run(CLASSIFY, CLASSIFY.load_settings({**tables, "model": {**_MODEL, "wide": 4096}}), tmp_path / "wide")
    found = load(tmp_path / "wide", task="classify").classify_fully(["dullx", "finex", "Dullness"], attention=True)
    assert [each.label for each in found] == ["bad", "good", "bad"]
    with pytest.raises(DataError, match="16 unknown ones of 16"):
        train_run(CLASSIFY, CLASSIFY.load_settings({**tables, "model": _MODEL}), tmp_path / "narrow")


def test_tagging_has_no_wide_part() -> None:
    with pytest.raises(ConfigError, match=r"model\.wide: expected a known setting; got an unknown one"):
        TAG.load_settings({"model": {"wide": 9}})


def test_a_tagger_learns_from_neighbors(tagger: Path, tmp_path: Path) -> None:
    figures = score(
        tagger, TagEvaluation(data=_numbers(tmp_path / "unseen.conll", seed=1), out=tmp_path / "out")
    ).figures
    assert [figure.name for figure in figures] == ["span_f1", "accuracy", "macro_f1"]
    assert figures[1].value > 95
    written = (tmp_path / "out").read_text().splitlines()
    truth = (tmp_path / "unseen.conll").read_text().splitlines()
    assert [line.split("\t")[0] for line in written[:-1]] == [line.split("\t")[0] for line in truth]


def test_what_is_written_can_be_trained_on_whatever_the_order_of_the_file(classifier: Path, tmp_path: Path) -> None:
    lines = [line.split("\t") for line in _films(tmp_path / "films.tsv", seed=1).read_text().splitlines()]
    data = tmp_path / "exchanged.tsv"
    data.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for label, text in lines))
    score(classifier, ClassifyEvaluation(data=data, out=tmp_path / "out.tsv"))
    assert [item.words for item in read_texts(tmp_path / "out.tsv")] == [(text,) for _, text in lines]


def test_answers_do_not_depend_on_the_batch(classifier: Path) -> None:
    model = load(classifier, task="classify")
    texts = ["dull", "a great film , the story", "", "the poor story the story the story"]
    together = model.classify_fully(texts)
    for text, found in zip(texts, together, strict=True):
        (alone,) = model.classify_fully([text])
        assert alone.label == found.label
        assert alone.probabilities == pytest.approx(found.probabilities, abs=1e-6)


def test_no_texts_give_no_answers(classifier: Path, tagger: Path) -> None:
    assert load(classifier, task="classify").classify([]) == []
    assert load(tagger, task="tag").tag([]) == []
    assert load(tagger, task="tag").tag([[], ["7"]])[0] == ()


def test_load_gives_the_class_of_the_task(classifier: Path, tagger: Path) -> None:
    assert isinstance(load(classifier), Classifier)
    assert isinstance(load(tagger), Tagger)
    with pytest.raises(CheckpointError, match="expected a checkpoint of `qkv train tag`; got one trained to classify"):
        load(classifier, task="tag")


def test_scores_of_words_are_in_the_order_of_the_texts() -> None:
    torch.manual_seed(0)
    text = read_like(["ab c", "d", "efg h ij"])
    model = TextTagger(ReaderConfig(size=40, labels=3, model="gru", width=8)).eval()
    together = predict(model, text, 0)
    for item, scores in zip(text, together, strict=True):
        torch.testing.assert_close(scores, predict(model, [item], 0)[0])
        assert scores.shape == (len(item.begins), 3)


def read_like(sentences: list[str]) -> list:  # type: ignore[type-arg]
    from qkv.data.tokenizer import Tokenizer
    from qkv.tasks.classify.data import EncodedText

    tokenizer = Tokenizer.learn(["abcdefghij"], kind="char")
    return [EncodedText(*encode_words(sentence.split(), tokenizer), (), 1) for sentence in sentences]


def test_a_label_that_training_never_saw_is_named_with_its_line(tmp_path: Path) -> None:
    train, valid = _films(tmp_path / "t.tsv"), tmp_path / "v.tsv"
    valid.write_text("good\tfine\nugly\tfilm\n")
    with pytest.raises(DataError) as raised:
        read("classify", data={"data": train, "valid_data": valid}, tokenizer={"tokenizer": "word"})
    assert f'{valid}:2: expected one of "bad", "good"; got "ugly"' in str(raised.value)


def test_texts_keep_their_labels_in_the_order_of_another_run(tmp_path: Path) -> None:
    text = read("classify", data={"data": _films(tmp_path / "t.tsv")})
    contents = Contents({}, {"labels": list(text.labels[::-1])})
    ours = text.adapted(Origin(Trained(tmp_path, contents, None, "classify"), ""))
    assert ours.labels == text.labels[::-1]
    for before, after in zip([*text.train, *text.valid], [*ours.train, *ours.valid], strict=True):
        assert [ours.labels[number] for number in after.labels] == [text.labels[number] for number in before.labels]


def test_a_text_that_is_too_long_is_named(tmp_path: Path, classifier: Path, tagger: Path) -> None:
    files = {"data": _films(tmp_path / "t.tsv"), "longest": 3}
    with pytest.raises(DataError, match=r"t.tsv:\d+: expected at most 3 tokens; got \d+"):
        read("classify", data=files, tokenizer={"tokenizer": "word"})
    with pytest.raises(DataError, match="text 2: expected at most 512 tokens; got 600"):
        load(classifier, task="classify").classify(["fine", "film " * 600])
    with pytest.raises(DataError, match="text 2: expected at most 512 tokens; got 600"):
        load(tagger, task="tag").tag([["1"], ["1"] * 600])


def test_settings_go_around() -> None:
    for recipe in (CLASSIFY, TAG):
        settings = recipe.load_settings({"data": {"data": "x"}, "model": {"model": "lstm"}})
        assert recipe.load_settings(recipe.show_settings(settings)) == settings


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"modell": {}}, 'Did you mean "model"?'),
        ({"model": {"labels": 3}}, "The vocabulary and the labels come from the training text."),
        ({"model": {"modle": "gru"}}, 'Did you mean "model"?'),
        ({"training": {"steps": 0}}, "steps: expected an integer, at least 1"),
    ],
)
def test_bad_settings_are_named(tables: dict, message: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(ConfigError) as raised:
        CLASSIFY.load_settings(tables)
    assert message in str(raised.value)


def test_files_and_folder_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        train_run(TAG, TAG.load_settings({}), tmp_path)
    assert "data" in caught.value.argument
    assert caught.value.got == "none"
    with pytest.raises(ConfigError, match="out: expected a folder for the run; got none"):
        train_run(TAG, TAG.load_settings({}), None)


def test_labels_are_judged_by_word_and_by_span() -> None:
    plain = judge_labels([["a", "b"], ["a"]], [["a", "a"], ["a"]])
    assert plain[0].value == pytest.approx(200 / 3)
    assert [figure.name for figure in judge_labels([["B-x"]], [["B-x"]])] == ["span_f1", "accuracy", "macro_f1"]
