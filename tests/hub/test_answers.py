"""The script in each export folder answers as qkv does, in a Python without it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.fuzz import models
from tests.fuzz.models import LANGUAGE, READER, RECURRENT, TRANSFORMER
from tests.hub.export_scripts import answers

import qkv
from qkv.checkpoint.folder import save
from qkv.data.tokenizer import Tokenizer
from qkv.models.configs.reader import ClassifierConfig, ReaderConfig
from qkv.tasks.exporting import export

for library in ("onnxruntime", "onnxscript", "ctranslate2", "transformers"):
    pytest.importorskip(library)
pytestmark = pytest.mark.slow
PUBLISHED = Path(__file__).parent / "families"


TEXT = ["the cat sat on the mat", "a dog ran to the cat .", "\N{LATIN SMALL LIGATURE FI}n, (fin)-fin!"]
TEXTS = ["the cat sat", "THE (cat)-Mat, \N{LATIN SMALL LIGATURE FI}n!", "a <eos> dog", "a dog ran to the cat ."]
SHAPES = {
    "transformer": ("translate", {"model": "transformer", **TRANSFORMER}, {"longest": 32}),
    "grown": (  # trained on targets that are longer than usual
        "translate",
        {"model": "transformer", **TRANSFORMER},
        {"longest": 32, "longest_targets": [[3, 50]]},
    ),
    "gru": ("translate", RECURRENT, {"longest": 32}),
    "language": ("generate", LANGUAGE, {}),
    "classifier": ("classify", READER, {"labels": ["bad", "good"], "longest": 64}),
    "tagger": ("tag", READER, {"labels": ["bad", "good"], "longest": 64}),
}


def run_of(folder: Path, shape: str, kind: str) -> Path:
    """Save a model whose weights are large enough that no two predictions are alike; its tokenizer changes text."""
    task, table, more = SHAPES[shape]
    tokenizer = Tokenizer.learn(TEXT, kind, 300, lowercase=True, unicode="NFKC")
    makers = {
        "translate": lambda: models.translator(table, tokenizer),
        "generate": lambda: models.language_model(tokenizer),
        "classify": lambda: models.reader_of(ClassifierConfig, tokenizer),
        "tag": lambda: models.reader_of(ReaderConfig, tokenizer),
    }
    contents = models.contents(tokenizer, task, table, makers[task], more)
    torch.manual_seed(4)
    model = {name: torch.randn(tensor.shape) for name, tensor in contents.model.items()}
    if "embed.weight" in model and "output.weight" in model:
        model["output.weight"] = model["embed.weight"]
    save(folder, replace(contents, model=model))
    return folder


@pytest.mark.filterwarnings("ignore::qkv.tasks.length.CutWarning")  # random weights seldom end
@pytest.mark.parametrize(
    ("shape", "kind", "to"),
    [
        ("grown", "word", "onnx"),
        ("grown", "unigram", "ctranslate2"),
        ("grown", "char", "transformers"),
        ("gru", "none", "onnx"),
    ],
)
def test_a_translator_answers(shape: str, kind: str, to: str, tmp_path: Path) -> None:
    export(run_of(tmp_path / "run", shape, kind), to, tmp_path / "out")
    texts = [*TEXTS[:2], "", *TEXTS[2 + (to == "transformers") :]]
    ours = qkv.load(tmp_path / "run").translate(texts)
    assert answers(tmp_path / "out", to, texts) == ours
    assert len(set(ours)) > 3  # one of them is empty


@pytest.mark.parametrize(("kind", "to"), [("bpe", "onnx"), ("word", "transformers")])
def test_a_language_model_answers(kind: str, to: str, tmp_path: Path) -> None:
    export(run_of(tmp_path / "run", "language", kind), to, tmp_path / "out")
    ours = qkv.load(tmp_path / "run").generate(["the", "a dog"], tokens=5, temperature=0)
    assert answers(tmp_path / "out", to, ["the", "a dog"], "5") == ours


def test_a_classifier_and_a_tagger_answer(tmp_path: Path) -> None:
    for shape, kind in (("classifier", "word"), ("tagger", "char")):
        export(run_of(tmp_path / shape, shape, kind), "onnx", tmp_path / f"{shape}-onnx")
    labels = qkv.load(tmp_path / "classifier").classify(TEXTS)
    assert answers(tmp_path / "classifier-onnx", "onnx", TEXTS) == labels
    assert len(set(labels)) == 2
    tags = qkv.load(tmp_path / "tagger").tag([text.split() for text in TEXTS])
    assert answers(tmp_path / "tagger-onnx", "onnx", TEXTS) == [" ".join(found) for found in tags]
    assert len(set(tags)) > 1
