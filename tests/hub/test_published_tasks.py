"""`qkv.load` of published folders: texts in, texts out, as with our own runs."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import ByteLevelBPETokenizer
from tokenizers.processors import RobertaProcessing

import qkv
from qkv.data.imported_tokenizer import ImportedTokenizer
from qkv.data.tokenizer import Tokenizer
from qkv.decode.sampling import Sampling
from qkv.errors import CheckpointError, DataError, UnsupportedError
from qkv.hub.families.load import read_folder
from qkv.hub.folder import Folder
from qkv.hub.onnx_graphs import to_onnx
from qkv.models.configs.language_model import DecoderConfig
from qkv.models.configs.translator import RecurrentConfig, TransformerConfig
from qkv.models.language_model import LanguageModel
from qkv.models.recurrent_translator import RecurrentTranslator
from qkv.models.translator import TransformerTranslator
from qkv.tasks.classify.data import encode_words
from qkv.tasks.classify.predict import Classification, Classifier
from qkv.tasks.exporting import export
from qkv.tasks.fill import MaskFiller
from qkv.tasks.generate.predict import Generator
from qkv.tasks.tag.predict import Tagger, Tagging
from qkv.tasks.translate.predict import Translator

HERE = Path(__file__).parent / "families"
TEXTS = ["the cat sat", "a hat on the mat", "that"]


@pytest.fixture(scope="module")
def generator() -> Generator:
    found: Generator = qkv.load(HERE / "llama")
    return found


@pytest.fixture(scope="module")
def translator() -> Translator:
    found: Translator = qkv.load(HERE / "marian")
    return found


def test_a_prompt_begins_as_its_tokenizer_says(generator: Generator) -> None:
    ids = generator.tokenizer.encode("the cat")
    assert generator.tokenizer.pieces(ids)[0] == "<s>"
    assert generator.tokenizer.decode(ids) == "the cat"


@pytest.mark.parametrize("how", [{"temperature": 0.0}, {"temperature": 1.5, "seed": 3}, {"beam": 4}], ids=str)
def test_texts_together_are_those_alone(generator: Generator, how: dict[str, float]) -> None:
    together = generator.generate(TEXTS, tokens=12, **how)  # type: ignore[arg-type]
    assert together == [generator.generate([text], tokens=12, **how)[0] for text in TEXTS]  # type: ignore[arg-type]
    assert all(text.startswith(prompt) for text, prompt in zip(together, TEXTS, strict=True))


def test_a_stream_is_the_text(generator: Generator) -> None:
    how = {"tokens": 12, "temperature": 1.0, "seed": 5}
    for text in TEXTS:
        assert text + "".join(generator.stream(text, **how)) == generator.generate([text], **how)[0]  # type: ignore[arg-type]


def test_generation_ends_at_the_end_token(generator: Generator) -> None:
    eos, seen = generator.tokenizer.eos, set[int]()
    for seed in range(20):
        ids = generator.continuations([[1, 7]], tokens=30, sampling=Sampling(seed=seed))[0]
        assert eos not in ids
        seen.add(len(ids))
    assert min(seen) < 30


def test_each_of_several_end_tokens_ends_a_text(generator: Generator, tmp_path: Path) -> None:
    text = generator.continuations([[1, 7]], tokens=12)[0]
    shutil.copytree(HERE / "llama", tmp_path / "model")
    ends = {"eos_token_id": [generator.tokenizer.eos, text[4]]}
    (tmp_path / "model" / "generation_config.json").write_text(json.dumps(ends))
    other = qkv.load(tmp_path / "model")
    assert other.continuations([[1, 7]], tokens=12) == [text[: text.index(text[4])]]
    qkv.hub.save(other, tmp_path / "again")
    assert qkv.load(tmp_path / "again").tokenizer.to_json() == other.tokenizer.to_json()


def test_more_tokens_than_the_context_are_refused(generator: Generator) -> None:
    with pytest.raises(DataError, match="tokens: expected at most"):
        generator.generate(["the"], tokens=64)
    with pytest.raises(DataError, match="tokens: expected at most"):
        generator.stream("the", tokens=64)


@pytest.mark.parametrize("how", [{"temperature": 0.0}, {"seed": 3}, {"beam": 2}], ids=str)
def test_the_usual_number_of_tokens_is_what_the_context_holds(generator: Generator, how: dict[str, Any]) -> None:
    prompts = ["the", "the cat sat on the mat"]
    room = [generator.model.config.context - len(generator.tokenizer.encode(prompt)) for prompt in prompts]
    expected = [generator.generate([text], tokens=most, **how)[0] for text, most in zip(prompts, room, strict=True)]
    assert generator.generate(prompts, **how) == expected
    if "beam" not in how:
        assert [text + "".join(generator.stream(text, **how)) for text in prompts] == expected


def test_it_is_evaluated_and_viewed(generator: Generator) -> None:
    assert generator.evaluate("the cat sat on the mat")[0].value > 0
    scene = generator.scene("the cat sat")
    assert [layer.name for layer in scene.layers] == [f"blocks.{i}.self_attention.attention" for i in range(3)]


def test_sentencepieces_are_those_of_their_library() -> None:
    expected = json.loads((HERE / "marian" / "expected_tokens.json").read_text())
    tokenizer = qkv.load(HERE / "marian").tokenizer
    for text, ids in expected["source"].items():
        assert tokenizer.encode(text) == [*ids, tokenizer.eos]
    for text, ids in expected["target"].items():
        assert tokenizer.encode(text, target=True) == ids
        if tokenizer.unk not in ids:
            assert tokenizer.decode(ids) == " ".join(text.split())


@pytest.mark.filterwarnings("ignore::qkv.tasks.length.CutWarning")
def test_it_translates(translator: Translator) -> None:
    found = translator.translate_fully(TEXTS, attention=True)
    assert [one.text for one in found] == translator.translate(TEXTS)
    assert len(translator.translate(TEXTS, beam=4)) == len(TEXTS)
    for one in found:
        assert one.weights is not None
        assert one.weights.shape == (len(one.target_tokens), len(one.source_tokens))
        assert one.weights.sum(-1) == pytest.approx(torch.ones(len(one.target_tokens)), abs=1e-5)
    scene = translator.scene(TEXTS[0])
    assert {layer.kind for layer in scene.layers} == {"self", "cross"}


def test_masks_are_filled() -> None:
    filler: MaskFiller = qkv.load(HERE / "bert")
    (found,) = filler.fill(["the [MASK] sat"], best=40)
    shares = [one.probability for one in found]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(1, abs=1e-5)
    assert (
        found[0].text
        == filler.tokenizer.decode(filler.tokenizer.encode("the [MASK] sat")).replace("sat", f"{found[0].token} sat")
        or found[0].token.startswith("##")
        or found[0].token.startswith("[")
    )
    assert filler.scene("the cat sat").layers
    for text in ("no mask", "[MASK] and [MASK]"):
        with pytest.raises(DataError, match="expected one mask"):
            filler.fill([text])


def test_a_folder_without_a_tokenizer_says_so() -> None:
    with pytest.raises(
        CheckpointError, match=r"gpt2: expected a checkpoint with a tokenizer; .* Copy .*\.json"
    ) as caught:
        qkv.load(HERE / "gpt2")
    assert "retrain" not in str(caught.value)


@pytest.mark.parametrize("name", ["llama", "bert", "marian"])
def test_what_is_saved_loads_the_same(name: str, tmp_path: Path) -> None:
    first = qkv.load(HERE / name)
    qkv.hub.save(first, tmp_path / "again")
    again = qkv.load(tmp_path / "again")
    assert again.tokenizer.to_json() == first.tokenizer.to_json()
    ours, theirs = first.model.state_dict(), again.model.state_dict()
    assert all(torch.equal(ours[part], theirs[part]) for part in ours)


@pytest.mark.parametrize("kind", ["bpe", "char", "none"])
@pytest.mark.parametrize("lowercase", [False, True])
def test_our_tokenizers_in_their_form(kind: str, lowercase: bool, tmp_path: Path) -> None:
    text = ["The cat, 42 hats.", "a  Zebra\nand ∂éjà vu"]
    tokenizer = Tokenizer.learn(text * 3, kind=kind, size=300, lowercase=lowercase)
    model = LanguageModel(DecoderConfig(size=tokenizer.size, width=16, heads=2, feed_forward=16, layers=1)).eval()
    first = Generator(model, tokenizer)
    qkv.hub.save(first, tmp_path / "again")
    again = qkv.load(tmp_path / "again")
    for line in [*text, "Cat hat", "unseen: ß"]:
        ids = tokenizer.encode(line)
        assert again.tokenizer.encode(line) == ids
        if tokenizer.unk not in ids:
            assert again.tokenizer.decode(ids) == tokenizer.decode(ids)
    prompt = "The" if kind != "none" else "cat,"
    shown = again.generate([prompt], tokens=8, temperature=0)[0]
    assert first.generate([prompt], tokens=8, temperature=0)[0].startswith(shown)


DECODER = {"size": 20, "width": 16, "heads": 2, "feed_forward": 16, "layers": 1}
PAIR = {"size": 20, "width": 16, "heads": 2, "feed_forward": 16, "encoder_layers": 1, "decoder_layers": 1}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"positions": "alibi"}, "positions"),
        ({"positions": "relative"}, "positions"),
        ({"window": 4}, "window"),
        ({"key_heads": 1}, "key_heads"),
        ({"score": "dot"}, "score"),
        ({"normalizer": "sparsemax"}, "score"),
        ({"sinks": True}, "score"),
    ],
    ids=str,
)
def test_a_language_model_without_counterpart_is_refused_by_name(
    changes: dict[str, object], named: str, tmp_path: Path
) -> None:
    model = LanguageModel(DecoderConfig(**{**DECODER, **changes}))  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match=f"{named}: expected"):
        qkv.hub.save(model, tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"positions": "none"}, "positions"),
        ({"window": 4}, "window"),
        ({"encoder": "gru"}, "encoder"),
        ({"cross_score": "dot"}, "cross_score"),
        ({"score": "additive"}, "score"),
    ],
    ids=str,
)
def test_a_translator_without_counterpart_is_refused_by_name(
    changes: dict[str, object], named: str, tmp_path: Path
) -> None:
    model = TransformerTranslator(TransformerConfig(**{**PAIR, **changes}))  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match=f"{named}: expected"):
        qkv.hub.save(model, tmp_path / "model")


def test_other_models_and_tokenizers_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="RecurrentTranslator"):
        qkv.hub.save(RecurrentTranslator(RecurrentConfig(size=20)), tmp_path / "model")
    words = Tokenizer.learn(["a b"], kind="word")
    two = Tokenizer(words.vocabulary, Tokenizer.learn(["c d"], kind="word").vocabulary)
    model = LanguageModel(DecoderConfig(**{**DECODER, "size": words.size}))  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="tokenizer: expected one vocabulary"):
        qkv.hub.save(model, tmp_path / "model", tokenizer=two)
    assert qkv.hub.save(model, tmp_path / "model").is_dir(), "what the message names"


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    model = read_folder(Folder(HERE / "gpt2")).build()
    (tmp_path / "kept").write_text("mine")
    with pytest.raises(CheckpointError, match="expected a new or empty folder"):
        qkv.hub.save(model, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


@pytest.mark.parametrize("name", ["llama", "marian"])
def test_a_folder_of_another_task_is_refused(name: str) -> None:
    with pytest.raises(CheckpointError, match="expected a"):
        qkv.load(HERE / name, task="translate" if name == "llama" else "generate")


@pytest.mark.parametrize("side", ["texts", "tokens"])
def test_a_classifier_labels_is_viewed_and_is_saved(side: str, tmp_path: Path) -> None:
    found = qkv.load(HERE / f"bert_{side}")
    assert isinstance(found, Classifier | Tagger)
    assert found.labels == ("bad", "good", "so-so")
    marked = ["[CLS]", "the", "cat", "sat", "[SEP]"]
    answer: Classification | Tagging
    if isinstance(found, Classifier):
        assert found.classify_fully([]) == []
        answer = found.classify_fully(TEXTS, attention=True)[0]
        assert found.classify(TEXTS) == [found.classify([text])[0] for text in TEXTS]
        assert list(answer.probabilities.values()) == sorted(answer.probabilities.values(), reverse=True)
        assert answer.label == next(iter(answer.probabilities))
    else:
        answer = found.tag_fully([text.split() for text in TEXTS], attention=True)[0]
        assert found.tag([text.split() for text in TEXTS]) == [found.tag([text.split()])[0] for text in TEXTS]
    assert list(answer.tokens) == marked
    assert answer.weights is not None
    torch.testing.assert_close(answer.weights.sum(-1), torch.ones(answer.weights.shape[:-1]), atol=1e-5, rtol=0)
    scene = found.scene("the cat sat")
    assert list(scene.sequences["text"]) == marked
    assert len(scene.layers) == 3
    qkv.hub.save(found, tmp_path / "again")
    again = qkv.load(tmp_path / "again")
    assert again.tokenizer.to_json() == found.tokenizer.to_json()
    assert torch.equal(again.model(*_some_ids()), found.model(*_some_ids()))


@pytest.mark.parametrize("name", ["bert_texts", "bert_tokens"])
def test_an_export_that_only_our_models_have_is_refused_without_advice_on_training(name: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="expected a translation Transformer; got Text") as caught:
        export(HERE / name, "ctranslate2", tmp_path / "out")
    assert 'to="transformers"' in str(caught.value)
    assert "rain" not in str(caught.value)


def test_a_window_that_onnx_lacks_is_refused_without_advice_on_training(tmp_path: Path) -> None:
    model: Any = read_folder(Folder(HERE / "mistral")).build()
    with pytest.raises(UnsupportedError, match="got a sliding window") as caught:
        to_onnx(model, tmp_path / "out")
    assert "Train" not in str(caught.value)


@pytest.mark.parametrize("name", ["bert_texts", "bert_tokens", "marian"])
def test_a_text_beyond_the_context_is_refused_without_advice_on_training(name: str) -> None:
    found = qkv.load(HERE / name)
    assert isinstance(found, Classifier | Tagger | Translator)
    words = ["cat"] * 2 * found.longest
    texts = words if isinstance(found, Tagger) else " ".join(words)
    label = {Classifier: "classify", Tagger: "tag", Translator: "translate"}[type(found)]
    with pytest.raises(DataError, match=rf"at most {found.longest} tokens; got \d+\. Shorten or split it\.$"):
        getattr(found, label)([texts])


def _some_ids() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([[2, 7, 9, 3, 0], [2, 8, 9, 12, 3]]), torch.tensor([4, 5])


def test_a_word_is_read_where_it_stands(tmp_path: Path) -> None:
    pieces = ByteLevelBPETokenizer()
    pieces.train_from_iterator(["the cat sat on the mat"] * 9, vocab_size=280, special_tokens=["<s>", "</s>"])
    pieces._tokenizer.post_processor = RobertaProcessing(("</s>", 1), ("<s>", 0))
    tokenizer = Tokenizer.of_imported(ImportedTokenizer(pieces._tokenizer.to_str()))
    words = ["the", "catwalk", "sat", "…", "mat"]
    ids, begins = encode_words(words, tokenizer)
    assert list(ids) == tokenizer.encode(" ".join(words))
    shown = tokenizer.pieces(ids)
    assert [shown[at].removeprefix("▁")[0] for at in (*begins[:3], begins[4])] == ["t", "c", "s", "m"]
    with pytest.raises(DataError, match="words: expected words of at least one token; got ''"):
        encode_words(["the", "", "cat"], tokenizer)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"problem_type": "multi_label_classification"}, "problem_type: expected single_label_classification"),
        ({"problem_type": "regression"}, "problem_type: expected single_label_classification"),
        ({"id2label": {"0": "a"}}, "id2label: expected two labels or more"),
        ({"id2label": {"0": "a", "2": "b", "3": "c"}}, "id2label: expected a table from 0"),
        ({"id2label": {"0": "a", "1": "b", "2": "a"}}, "id2label: expected labels that are texts"),
        ({"id2label": {"0": "a", "1": "b", "2": 7}}, "id2label: expected labels that are texts"),
        ({"id2label": None, "num_labels": 10**12}, "num_labels: expected a whole number"),
        ({"id2label": {"0": "a", "1": "b"}}, "shape"),
        ({"architectures": ["BertForMaskedLM"]}, "classifier.bias, which this model does not have"),
        ({"architectures": ["BertForQuestionAnswering"]}, "classifier.bias, which this model does not have"),
    ],
    ids=str,
)
def test_other_outputs_are_refused_by_name(changes: dict[str, object], named: str, tmp_path: Path) -> None:
    shutil.copytree(HERE / "bert_texts", tmp_path / "model")
    table = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps(table | changes))
    with pytest.raises(CheckpointError, match=named):
        qkv.load(tmp_path / "model")
