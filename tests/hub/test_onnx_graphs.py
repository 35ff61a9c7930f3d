"""ONNX Runtime computes the same numbers and ids from an exported model as the model itself."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.hub.published import inputs as published_inputs
from torch import Tensor, nn

from qkv.decode.greedy import greedy
from qkv.errors import UnsupportedError
from qkv.hub.families.load import read_folder
from qkv.hub.folder import Folder
from qkv.hub.onnx_graphs import OPSET, Exportable, graphs, to_onnx
from qkv.models.configs.language_model import DecoderConfig
from qkv.models.configs.reader import ClassifierConfig, ReaderConfig
from qkv.models.configs.translator import RecurrentConfig, TransformerConfig
from qkv.models.language_model import LanguageModel
from qkv.models.reader import TextClassifier, TextTagger
from qkv.models.recurrent_translator import RecurrentTranslator
from qkv.models.translator import TransformerTranslator
from qkv.nn.attention import Attention

onnxruntime = pytest.importorskip("onnxruntime")

SIZE, BOS, EOS, LIMIT = 19, 1, 2, 9
PUBLISHED = Path(__file__).parent / "families"
SMALL = {"width": 16, "heads": 2, "feed_forward": 24}
BATCHES = [[5, 3, 6, 6], [1], [7, 0, 30, 2, 11], [12, 12]]
"""Row lengths of some batches: single, empty, longer and shorter than the traced example, not padded."""


def drawn(model: Exportable) -> Exportable:
    """Parameters large enough that no two predictions are alike."""
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model.eval()


def translator(**options: Any) -> TransformerTranslator:
    config = TransformerConfig(size=SIZE, **{**SMALL, "encoder_layers": 1, "decoder_layers": 1, **options})
    model = drawn(TransformerTranslator(config))
    assert isinstance(model, TransformerTranslator)
    return model


def exported(model: Exportable, out: Path) -> dict[str, Any]:
    to_onnx(model, out)
    return {path.stem: onnxruntime.InferenceSession(str(path)) for path in out.glob("*.onnx")}


def run(session: Any, *inputs: Tensor) -> Tensor:
    names = [each.name for each in session.get_inputs()]
    feeds = {name: tensor.numpy() for name, tensor in zip(names, inputs, strict=True)}
    (found,) = session.run(None, feeds)
    assert found.dtype == np.float32
    return torch.from_numpy(found)


def batch(lengths: list[int]) -> tuple[Tensor, Tensor]:
    return torch.randint(4, SIZE, (len(lengths), max(lengths))), torch.tensor(lengths)


def alike(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-5)


def check_translator(model: TransformerTranslator, out: Path) -> None:
    sessions = exported(model, out)
    for lengths in BATCHES:
        source, real = batch(lengths)
        memory = run(sessions["encoder"], source, real)
        for steps in (1, 2, 13):
            target = torch.randint(4, SIZE, (len(lengths), steps))
            with torch.no_grad():
                expected = model(source, real, target)
            alike(run(sessions["decoder"], memory, real, target), expected)
        chosen = torch.full((len(lengths), 1), BOS)
        for _ in range(LIMIT):
            scores = run(sessions["decoder"], memory, real, chosen)[:, -1]
            chosen = torch.cat([chosen, scores.argmax(-1, keepdim=True)], 1)
        ours = greedy(model, source, real, bos=BOS, eos=EOS, limit=LIMIT)
        assert [until_end(row) for row in chosen[:, 1:].tolist()] == [one.ids for one in ours]


def until_end(ids: list[int]) -> tuple[int, ...]:
    return tuple(ids[: ids.index(EOS)] if EOS in ids else ids)


@pytest.mark.slow
def test_a_graph_names_its_operators_and_who_wrote_it(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    session = exported(drawn(TextClassifier(ClassifierConfig(size=SIZE, labels=3, width=8))), tmp_path)["model"]
    about = session.get_modelmeta()
    assert (about.producer_name, about.graph_name) == ("qkv", "main_graph")
    operators = onnx.load(tmp_path / "model.onnx", load_external_data=False).opset_import
    assert {part.domain: part.version for part in operators} == {"": OPSET}
    assert [(each.name, each.type) for each in session.get_outputs()] == [("logits", "tensor(float)")]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{}, {"score": "additive"}, {"score": "bilinear"}, {"score": "dot", "norm_first": False, "tied": False}],
    ids=["scaled_dot", "additive", "bilinear", "dot, post-norm"],
)
def test_a_translator_gives_the_same_scores_and_ids(options: dict[str, Any], tmp_path: Path) -> None:
    check_translator(translator(**options), tmp_path)


def named(session: Any, **inputs: Tensor) -> dict[str, Tensor]:
    """Run a graph by the names of its inputs, of which it may need only some."""
    wanted = {each.name for each in session.get_inputs()}
    assert wanted <= set(inputs)
    found = session.run(None, {name: tensor.numpy() for name, tensor in inputs.items() if name in wanted})
    return {each.name: torch.from_numpy(one) for each, one in zip(session.get_outputs(), found, strict=True)}


def after(found: dict[str, Tensor], prefix: str, to: str) -> dict[str, Tensor]:
    return {name.replace(prefix, to, 1): tensor for name, tensor in found.items() if name.startswith(prefix)}


RECURRENT: dict[str, dict[str, Any]] = {
    "gru, additive": {},
    "lstm of two layers, dot": {"model": "lstm", "score": "dot", "decoder_layers": 2, "encoder_layers": 2},
    "rnn, luong, bilinear": {"model": "rnn", "wiring": "luong", "score": "bilinear"},
    "no attention": {"score": "none"},
    "split memory, entmax": {"memory": "split", "normalizer": "entmax"},
    "several heads": {"heads": 2, "score": "scaled_dot"},
    "location": {"score": "location"},
    "transformer before a gru": {"encoder": "transformer"},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", RECURRENT)
def test_a_recurrent_translator_gives_the_same_scores_and_ids(kind: str, tmp_path: Path) -> None:
    model = drawn(
        RecurrentTranslator(RecurrentConfig(size=SIZE, embedding=8, hidden=8, attention=8, **RECURRENT[kind]))
    )
    assert isinstance(model, RecurrentTranslator)
    sessions = exported(model, tmp_path)
    assert set(sessions) == {"encoder", "step"}
    for lengths in BATCHES:
        source, real = batch(lengths)
        state = named(sessions["encoder"], source=source, lengths=real)
        target = torch.randint(4, SIZE, (len(lengths), 9))
        with torch.no_grad():
            expected = model(source, real, target)
        for place in range(9):
            found = named(sessions["step"], tokens=target[:, place], lengths=real, **state)
            alike(found["logits"], expected[:, place])
            state |= after(found, "next_", "")


@pytest.mark.slow
def test_a_decoder_with_its_cache_gives_the_same_scores_and_ids(tmp_path: Path) -> None:
    model = translator(decoder_layers=2)
    sessions = exported(model, tmp_path)
    for lengths in BATCHES:
        source, real = batch(lengths)
        memory = run(sessions["encoder"], source, real)
        given = named(sessions["begin"], memory=memory)
        past = {
            each.name: torch.zeros(len(lengths), 2, 0, 8)
            for each in sessions["step"].get_inputs()
            if each.name.startswith("past_")
        }
        chosen = torch.full((len(lengths), 1), BOS)
        for _ in range(LIMIT):
            found = named(sessions["step"], tokens=chosen[:, -1], lengths=real, **given, **past)
            alike(found["logits"], run(sessions["decoder"], memory, real, chosen)[:, -1])
            past = after(found, "next_", "past_")
            chosen = torch.cat([chosen, found["logits"].argmax(-1, keepdim=True)], 1)
        ours = greedy(model, source, real, bos=BOS, eos=EOS, limit=LIMIT)
        assert [until_end(row) for row in chosen[:, 1:].tolist()] == [one.ids for one in ours]


@pytest.mark.slow
@pytest.mark.parametrize("positions", ["rotary", "alibi", "relative", "learned", "sinusoidal", "none"])
def test_a_language_model_gives_the_same_scores_and_ids(positions: Any, tmp_path: Path) -> None:
    config = DecoderConfig(size=SIZE, **SMALL, layers=2, key_heads=1, positions=positions, context=40)
    check_language_model(config, tmp_path)


@pytest.mark.parametrize(
    "normalizer",
    ["hard", *(pytest.param(name, marks=pytest.mark.slow) for name in ("sparsemax", "entmax", "sigmoid", "mean"))],
)
def test_any_normalizer_has_a_graph(normalizer: Any, tmp_path: Path) -> None:
    check_language_model(DecoderConfig(size=SIZE, **SMALL, layers=1, normalizer=normalizer), tmp_path)


def check_language_model(config: DecoderConfig, out: Path) -> None:
    model = drawn(LanguageModel(config))
    assert isinstance(model, LanguageModel)
    session = exported(model, out)["model"]
    for rows, length in ((3, 6), (1, 1), (5, 40), (2, 17)):
        tokens = torch.randint(4, SIZE, (rows, length))
        with torch.no_grad():
            alike(run(session, tokens), model(tokens))
    ours = theirs = torch.randint(4, SIZE, (4, 3))
    logits, state = model.read(ours)
    for _ in range(LIMIT):
        ours = torch.cat([ours, logits[:, -1:].argmax(-1)], 1)
        theirs = torch.cat([theirs, run(session, theirs)[:, -1:].argmax(-1)], 1)
        logits, state = model.read(ours[:, -1:], state)
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"model": "none", "pool": "attention"}, marks=pytest.mark.slow),
        pytest.param({"model": "transformer", "pool": "mean"}, marks=pytest.mark.slow),
        pytest.param({"model": "gru"}, marks=pytest.mark.slow),
        pytest.param({"model": "lstm", "layers": 2, "residual": True}, marks=pytest.mark.slow),
        pytest.param({"model": "rnn", "pool": "mean"}, marks=pytest.mark.slow),
    ],
    ids=["pooled by attention", "transformer", "gru", "lstm", "rnn"],
)
def test_a_classifier_gives_the_same_scores(options: dict[str, Any], tmp_path: Path) -> None:
    config = {**SMALL, **options}
    if config["model"] != "transformer":
        del config["heads"]
    model = drawn(TextClassifier(ClassifierConfig(size=SIZE, labels=3, **config)))
    session = exported(model, tmp_path)["model"]
    for lengths in BATCHES:
        texts = batch(lengths)
        with torch.no_grad():
            alike(run(session, *texts), model(*texts))


@pytest.mark.slow
def test_a_tagger_gives_the_same_scores(tmp_path: Path) -> None:
    model = drawn(TextTagger(ReaderConfig(size=SIZE, labels=3, model="transformer", **SMALL)))
    session = exported(model, tmp_path)["model"]
    for lengths in BATCHES:
        ids, real = batch(lengths)
        words = torch.randint(0, max(lengths), (len(lengths), 4))
        with torch.no_grad():
            alike(run(session, ids, real, words), model(ids, real, words))


def test_a_wide_part_is_refused(tmp_path: Path) -> None:
    model = TextClassifier(ClassifierConfig(size=SIZE, labels=3, width=8, model="none", wide=16))
    with pytest.raises(UnsupportedError, match="to: expected a model that reads only tokens; got one with a wide"):
        to_onnx(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_sliding_window_is_refused(tmp_path: Path) -> None:
    model = LanguageModel(DecoderConfig(size=SIZE, **SMALL, window=4))
    with pytest.raises(UnsupportedError, match="to: expected attention to all earlier positions; got a sliding"):
        to_onnx(model, tmp_path / "out")


def test_the_model_stays_as_it_is() -> None:
    def backends(module: nn.Module) -> set[str]:
        return {layer.backend for layer in module.modules() if isinstance(layer, Attention)}

    model = translator().train()
    found = graphs(model)
    assert model.training
    assert backends(model) == {"auto"}
    names = ("encoder", "decoder", "begin", "step")
    assert {name: backends(graph.module) for name, graph in found.items()} == {key: {"reference"} for key in names}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["llama", "gpt2", "t5", "marian", "bart", "mbart", "m2m_100", "bert_tokens", "bert_texts", "modernbert_texts"],
)
def test_published_models(name: str, tmp_path: Path) -> None:
    """The fast suite exports a language model of ours above, whose nodes are of the same kinds."""
    model: Any = read_folder(Folder(PUBLISHED / name)).build()
    sessions, given = exported(model, tmp_path), published_inputs()
    if isinstance(model, TransformerTranslator):
        memory = run(sessions["encoder"], given.tokens, given.lengths)
        found, expected = run(sessions["decoder"], memory, given.lengths, given.target), model(*given)
    elif isinstance(model, LanguageModel):
        found, expected = run(sessions["model"], given.tokens), model(given.tokens)
    else:
        words = (torch.tensor([[0, 1]]).repeat(len(given.tokens), 1),) if isinstance(model, TextTagger) else ()
        inputs = given.tokens, given.lengths, *words
        found, expected = run(sessions["model"], *inputs), model(*inputs)
    alike(found, expected.detach())
