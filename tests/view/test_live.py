"""A page that computes: its answers and weights are those of Python on the same int8 weights."""

import json
import re

import pytest
import torch
from tests.view.javascript import JavaScript, largest_difference

import qkv
from qkv.data.tokenizer import Tokenizer
from qkv.errors import ConfigError, UnsupportedError
from qkv.models.configs.language_model import DecoderConfig, RecurrentDecoderConfig
from qkv.models.configs.reader import ClassifierConfig
from qkv.models.configs.translator import RecurrentConfig, TransformerConfig
from qkv.models.copying import CopyingTranslator
from qkv.models.language_model import LanguageModel
from qkv.models.reader import TextClassifier
from qkv.models.recurrent_language_model import RecurrentLanguageModel
from qkv.models.recurrent_translator import RecurrentTranslator
from qkv.models.translator import TransformerTranslator
from qkv.recording.recorder import record
from qkv.tasks.classify.predict import Classifier
from qkv.tasks.generate.predict import Generator
from qkv.tasks.text_attention import read_ids
from qkv.tasks.translate.limits import LengthLimit
from qkv.tasks.translate.predict import Translator
from qkv.view import live
from qkv.view.answers.requests import RequestHandler
from qkv.view.bundle import script_of

TEXTS = ("Der kleine „Xaver“ läuft über 3 Wiesen.", "Hund")
LOGITS, WEIGHTS = 2e-4, 5e-5


@pytest.fixture(scope="module")
def js(browser):
    return JavaScript(browser)


def random(model, spread=2.0):
    """Random weights with peaked distributions: an untrained model writes one token again and again."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, spread * parameter.shape[-1] ** -0.5, generator=generator)
            else:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def tokenizer(kind="bpe", size=320, **settings):
    return Tokenizer.learn([*TEXTS, "die Katze schläft", "Ein Hund."] * 3, kind=kind, size=size, **settings)


def transformer(kind="bpe", source=None, **changes):
    words = tokenizer(kind)
    if source is not None:
        words, changes = (
            Tokenizer(words.vocabulary, tokenizer(source).vocabulary),
            {**changes, "source_size": tokenizer(source).size},
        )
    config = {"width": 24, "heads": 2, "feed_forward": 32, "encoder_layers": 2, "decoder_layers": 2} | changes
    return Translator(random(TransformerTranslator(TransformerConfig(size=words.size, **config))), words)


def recurrent(**changes):
    words = tokenizer("word")
    config = {"embedding": 12, "hidden": 16, "attention": 10} | changes
    return Translator(random(RecurrentTranslator(RecurrentConfig(size=words.size, **config))), words)


TRANSLATORS = {
    "transformer": transformer,
    "norms after": lambda: transformer(norm_first=False, tied=False),
    "characters": lambda: transformer("char"),
    "spaces": lambda: transformer("none"),
    "two vocabularies": lambda: transformer("word", source="bpe"),
    "window": lambda: transformer(window=2, positions="none"),
    **{name: lambda name=name: transformer(positions=name) for name in ("rotary", "alibi", "relative")},
    "bilinear, rotary": lambda: transformer(score="bilinear", positions="rotary"),
    **{
        name: lambda name=name: transformer(score=name)
        for name in ("dot", "cosine", "additive", "nonlocal_concat", "gaussian", "epanechnikov", "learned", "uniform")
    },
    **{
        name: lambda name=name: transformer(normalizer=name, cross_normalizer="softmax")
        for name in ("mean", "hard", "sparsemax", "entmax", "sigmoid")
    },
    "learned alpha": lambda: transformer(normalizer="entmax", alpha="learned"),
    "sinks": lambda: transformer(sinks=True),
    "gru encoder": lambda: transformer(encoder="gru"),
    "recurrent": recurrent,
    "luong": lambda: recurrent(wiring="luong", score="bilinear", model="lstm"),
    "dot, rnn": lambda: recurrent(score="dot", model="rnn", decoder_layers=2, encoder_layers=2),
    "split": lambda: recurrent(memory="split", score="scaled_dot"),
    "heads": lambda: recurrent(heads=2),
    "transformer encoder": lambda: recurrent(encoder="transformer", encoder_heads=2, heads=2, embedding=16),
}


@pytest.mark.parametrize("name", TRANSLATORS)
def test_a_translator_answers_as_in_python(js, name):
    python = js.open_model(TRANSLATORS[name]())
    for text in TEXTS:
        ids = python.tokenizer.source.encode(text)
        found = js.run(text)
        expected = python.translate_fully([text])[0]
        assert found["written"] == expected.text
        assert found["finished"] == expected.finished
        assert found["sequences"]["source"] == list(expected.source_tokens)
        assert found["sequences"]["target"] == list(expected.target_tokens)
        source, lengths = torch.tensor([ids]), torch.tensor([len(ids)])
        target = torch.tensor([[python.tokenizer.bos, *found["ids"]]])
        with torch.no_grad(), record(python.model) as trace:
            logits = python.model(source, lengths, target)[0]
        assert largest_difference(found["rows"], logits.softmax(-1)) < LOGITS
        assert list(found["layers"]) == list(trace.layers)
        for layer, weights in found["layers"].items():
            ours = trace.weights(layer)[0]
            assert largest_difference(weights, ours if ours.ndim == 3 else ours[None]) < WEIGHTS


def test_a_page_follows_the_lengths_that_were_trained_on(js):
    words = tokenizer("char")
    model = random(TransformerTranslator(TransformerConfig(size=words.size, width=8, heads=2, feed_forward=8)))
    model.output.bias.data[words.eos] = -100  # never ends
    python = js.open_model(Translator(model, words, limit=LengthLimit(((5, 60), (9, 90)))))
    for text in ("Hund", "Hunde", "kleine Hunde"):
        with pytest.warns(UserWarning, match="cut at the length limit"):
            python.translate([text])
        assert len(js.run(text)["ids"]) == int(python.limit(torch.tensor(len(text))))


def language_model(**changes):
    words = tokenizer()
    config = {"width": 24, "heads": 4, "feed_forward": 32, "layers": 2, "context": 120} | changes
    return Generator(random(LanguageModel(DecoderConfig(size=words.size, **config))), words)


def recurrent_language_model(**changes):
    words = tokenizer()
    config = {"width": 24, "heads": 4, "context": 120} | changes
    return Generator(random(RecurrentLanguageModel(RecurrentDecoderConfig(size=words.size, **config))), words)


WRITERS = {
    "rotary": language_model,
    "grouped": lambda: language_model(key_heads=2, activation="gelu", bias=False),
    "learned": lambda: language_model(positions="learned", window=5, activation="silu"),
    "alibi": lambda: language_model(positions="alibi", activation="gelu_tanh"),
    "additive": lambda: language_model(score="additive", activation="relu"),
    "gru": recurrent_language_model,
    "lstm": lambda: recurrent_language_model(model="lstm", layers=2, window=3, tied=False),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_language_model_writes_as_in_python(js, name):
    python = js.open_model(WRITERS[name]())
    for text in TEXTS:
        ids = python.tokenizer.encode(text)
        found = js.run(text, tokens=30)
        assert text + found["written"] == python.generate([text], tokens=30, temperature=0)[0]
        with torch.no_grad(), record(python.model) as trace:
            logits = read_ids(python, torch.tensor([[*ids, *found["ids"]]]))[0]
        assert largest_difference(found["rows"], logits.softmax(-1)) < LOGITS
        for layer, weights in found["layers"].items():
            assert largest_difference(weights, trace.weights(layer)[0]) < WEIGHTS


@pytest.mark.parametrize("seed", [0, 1, 77])
def test_samples_are_those_of_python(js, seed):
    python = js.open_model(language_model())
    for text in TEXTS:
        drawn = js.run(text, tokens=40, temperature=0.8, seed=seed)["written"]
        assert text + drawn == python.generate([text], tokens=40, temperature=0.8, seed=seed)[0]


def classifier(**changes):
    words = tokenizer("word")
    model = TextClassifier(ClassifierConfig(size=words.size, labels=3, width=16, feed_forward=24, **changes), words.unk)
    return Classifier(random(model), words, ("red", "green", "blue"), longest=64)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model": "transformer", "heads": 2, "layers": 2},
        {"model": "none"},
        {"pool": "mean", "residual": True, "model": "lstm"},
        {"score": "bilinear", "normalizer": "sparsemax"},
    ],
    ids=str,
)
def test_a_classifier_labels_as_in_python(js, changes):
    python = js.open_model(classifier(**changes))
    for text in TEXTS:
        found, expected = js.run(text), python.classify_fully([text])[0]
        assert found["written"] == expected.label
        shares = [expected.probabilities[label] for label in python.labels]
        assert largest_difference(found["rows"], torch.tensor([shares])) < LOGITS
        ids = torch.tensor([python.tokenizer.encode(text)])
        with torch.no_grad(), record(python.model) as trace:
            read_ids(python, ids)
        for layer, weights in found["layers"].items():
            ours = trace.weights(layer)[0]
            assert largest_difference(weights, ours if ours.ndim == 3 else ours[None]) < WEIGHTS


def test_the_page_asks_nobody_and_evaluates_nothing():
    page = qkv.live(transformer(), TEXTS).text
    policy = re.search('http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    rules = dict(rule.split(" ", 1) for rule in policy[1].split("; "))
    assert rules["default-src"] == "'none'"
    assert re.fullmatch("'sha256-[^ ]*'", rules["script-src"])
    assert not re.search(
        r"\b(fetch|XMLHttpRequest|WebSocket|innerHTML|eval|WebAssembly|Function)\b\(", script_of("play.js")
    )


def test_the_page_says_how_many_texts_have_another_answer_than_before_rounding():
    run = transformer()
    page = qkv.live(run, TEXTS).text
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
    rounded = run.in_page()[0]
    assert data["checked"] == len(TEXTS)
    assert data["differ"] == sum(
        a != b for a, b in zip(run.page_answers(TEXTS), rounded.page_answers(TEXTS), strict=True)
    )


def test_a_large_page_is_refused_with_its_size(monkeypatch):
    monkeypatch.setattr(live, "LARGEST", 100_000)
    with pytest.raises(ConfigError, match=r"at most 0 MB; got \d+ MB. It has [\d,]+ parameters"):
        qkv.live(transformer(), TEXTS)


def test_what_a_page_cannot_compute_is_named():
    plain = transformer(copy="joint")
    with pytest.raises(UnsupportedError, match="got a CopyingTranslator"):
        qkv.live(Translator(CopyingTranslator(plain.model, 3), plain.tokenizer), TEXTS)
    with pytest.raises(UnsupportedError, match="got a score of LocationScore"):
        qkv.live(recurrent(score="location"), TEXTS)
    with pytest.raises(UnsupportedError, match="a linear model of words"):
        qkv.live(classifier(wide=64), TEXTS)
    with pytest.raises(ConfigError, match="expected a model with attention"):
        qkv.live(recurrent(score="none"), TEXTS)
    with pytest.raises(UnsupportedError, match="got a unigram tokenizer"):
        qkv.live(transformer("unigram"), TEXTS)


ASKED = """async ([text, requests]) => {
  const source = m["computed.js"].computed(model.net, m["answering.js"].run(model, text));
  const answers = [];
  for (const [path, body] of requests) answers.push(await (body ? source.post(path, body) : source.json(path)));
  return answers;
}"""
CHANGES = (
    {"temperature": 0.5},
    {"score": {"name": "cosine", "parameters": {"scale": 7.0}}},
    {"score": {"name": "gaussian", "parameters": {"bandwidth": 2.0}}},
    {"normalizer": {"name": "entmax", "parameters": {"alpha": 1.4}}},
    {"mask": {"name": "window", "parameters": {"left": 2, "right": 1}}},
    {"score": {"name": "uniform", "parameters": {}}, "normalizer": {"name": "softmax", "parameters": {}}},
)


def test_what_if_is_that_of_python(js):
    python = js.open_model(transformer())
    handler = RequestHandler(python.scene(TEXTS[0]))
    where = {"layer": 3, "head": 1, "query": 2}
    bodies = [{**where, **change} for change in CHANGES] + [{**where, "vector": [0.3] * 12}]
    found = js.evaluate(ASKED, [TEXTS[0], [["api/whatif", body] for body in bodies]])
    for body, ours in zip(bodies, found, strict=True):
        theirs = handler.ask("whatif", "", body).content
        for side in ("before", "after"):
            assert ours[side]["weights"] == pytest.approx(theirs[side]["weights"], abs=1e-5)
            assert ours[side]["output"] == pytest.approx(theirs[side]["output"], abs=1e-5)
    refused = {**where, "normalizer": {"name": "sum", "parameters": {}}}
    assert "never negative" in js.evaluate(ASKED, [TEXTS[0], [["api/whatif", refused]]])[0]["error"]
    handler.close()


@pytest.mark.parametrize("scope", ["head", "layer", "model"])
def test_the_whole_model_runs_again_as_in_python(js, scope):
    python = js.open_model(transformer("word"))
    handler = RequestHandler(python.scene(TEXTS[0]))
    where = {"layer": 3, "head": 1, "scope": scope}
    bodies = [{**where, **change} for change in (*CHANGES, {"output": "zero"}, {"output": "mean"})]
    found = js.evaluate(ASKED, [TEXTS[0], [["api/rerun", body] for body in bodies]])
    for body, ours in zip(bodies, found, strict=True):
        theirs = handler.ask("rerun", "", body).content
        assert ours["before"] == theirs["before"]
        assert [row["label"] for row in ours["rows"]] == [row["label"] for row in theirs["rows"]]
        moved = [row["moved"] for row in ours["rows"]]
        assert moved == pytest.approx([row["moved"] for row in theirs["rows"]], abs=5e-4), body
    handler.close()


def test_answers_about_a_text_are_those_of_the_server(js):
    python = js.open_model(transformer())
    handler = RequestHandler(python.scene(TEXTS[0]))
    asked = [
        "scene",
        "cell?layer=1&head=0&query=2&key=3",
        "graph?layers=0,1,3&query=1&top=4&frontier=12",
        "heads",
    ]
    found = dict(zip(asked, js.evaluate(ASKED, [TEXTS[0], [[f"api/{path}", None] for path in asked]]), strict=True))
    expected = {path: handler.ask(*path.split("?"), *([] if "?" in path else [""])).content for path in asked}
    scenes = found["scene"], expected["scene"]
    assert scenes[0]["sequences"] == scenes[1]["sequences"]
    for ours, theirs in zip(scenes[0]["layers"], scenes[1]["layers"], strict=True):
        same = (
            "name",
            "short",
            "kind",
            "queries",
            "keys",
            "heads",
            "rows",
            "columns",
            "levels",
            "equation",
            "value_width",
        )
        assert {name: ours[name] for name in same} == {name: theirs[name] for name in same}
    cell, graph = asked[1:3]
    assert found[cell]["weight"] == pytest.approx(expected[cell]["weight"], abs=1e-5)
    links = [[(link["from"], link["to"]) for link in each[graph]["links"]] for each in (found, expected)]
    assert links[0] == links[1]
    for ours, theirs in zip(found["heads"], expected["heads"], strict=True):
        assert [label["name"] for label in ours["labels"]] == [label["name"] for label in theirs["labels"]]
        values = [label["value"] for label in theirs["labels"]]
        assert [label["value"] for label in ours["labels"]] == pytest.approx(values, abs=1e-4)
        assert [label["holds"] for label in ours["labels"]] == [label["holds"] for label in theirs["labels"]]
    handler.close()
