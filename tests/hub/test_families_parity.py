"""Where `transformers` is installed: random models of each family against it, in both directions."""

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from tests.hub import theirs
from tests.hub.published import CASES, END, FILLERS, GENERATORS, LABELERS, PAIRS, VOCABULARY, inputs
from tests.hub.test_families import CLOSE, continued, load, logits_of, same_ids, start_of
from tests.pairs import fast

import qkv
from qkv.hub.families.save import save
from qkv.models.configs.language_model import DecoderConfig
from qkv.models.configs.translator import TransformerConfig
from qkv.models.language_model import LanguageModel
from qkv.models.translator import TransformerTranslator

pytestmark = pytest.mark.filterwarnings("ignore")

SEED = 7
ONE_OF_EACH = ("gpt2", "gpt_neox", "llama", "gemma3", "bert", "bert_tokens", "modernbert", "marian", "t5")
"""Of families with the same parts one; of every family `test_families.py` compares stored numbers."""
GROUPS = {"generate": GENERATORS, "translate": PAIRS}


@pytest.mark.parametrize("name", fast(CASES, *ONE_OF_EACH))
def test_logits_and_ids(name: str, tmp_path: Path) -> None:
    model, given = theirs.make(name, SEED), inputs(SEED)
    theirs.write(model, tmp_path / "model")
    ours = load(tmp_path / "model")
    expected = theirs.logits(model, name, given)
    assert (logits_of(ours, given) - expected).abs().max() <= CLOSE * expected.abs().max()
    if name in (*GENERATORS, *PAIRS):
        for width in (1, 4):
            answer = theirs.continued(model, name, given, width)
            same_ids(continued(ours, given, width, start=start_of(name)), [list(row) for row in answer], width)


@pytest.mark.parametrize("name", FILLERS)
@torch.no_grad()
def test_maps(name: str, tmp_path: Path) -> None:
    model, given = theirs.make(name, SEED), inputs(SEED)
    theirs.write(model, tmp_path / "model")
    ours, real = load(tmp_path / "model"), torch.arange(given.tokens.shape[1]) < given.lengths[:, None]
    with qkv.record(ours) as trace:
        ours(given.tokens, given.lengths)
    maps = model(input_ids=given.tokens, attention_mask=real.long(), output_attentions=True).attentions
    for layer, expected in zip(trace.layers, maps, strict=True):
        assert ((trace.weights(layer) - expected) * real[:, None, :, None]).abs().max() <= CLOSE


@pytest.mark.parametrize(
    "name",
    fast(
        ["gpt2", "gpt_neox", "llama3", "gemma3", "roberta", "modernbert", "marian", "pegasus", "t5_gated", *LABELERS],
        *("gpt2", "llama3", "roberta", "modernbert", "marian", "t5_gated", LABELERS[0]),
    ),
)
def test_what_is_written_is_read_by_theirs(name: str, tmp_path: Path) -> None:
    model, given = theirs.make(name, SEED), inputs(SEED)
    theirs.write(model, tmp_path / "model")
    save(load(tmp_path / "model"), tmp_path / "again")
    first, again = (type(model).from_pretrained(tmp_path / folder) for folder in ("model", "again"))
    assert torch.equal(theirs.logits(again, name, given), theirs.logits(first, name, given))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"bias": False, "tied": False, "activation": "gelu"},
        {"positions": "learned"},
        {"positions": "sinusoidal", "bias": False},
        {"positions": "none", "tied": False},
    ],
    ids=str,
)
@torch.no_grad()
def test_a_language_model_of_ours(changes: dict[str, object], tmp_path: Path) -> None:
    import transformers

    torch.manual_seed(SEED)
    sizes = {"size": VOCABULARY, "width": 24, "heads": 4, "feed_forward": 32, "layers": 2, "context": 32}
    model = randomized(LanguageModel(DecoderConfig(**{**sizes, **changes})))
    save(model, tmp_path / "model")
    theirs_ = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    tokens = inputs(SEED).tokens
    expected = model(tokens)
    for found in (theirs_(tokens).logits, load(tmp_path / "model")(tokens)):
        assert (found - expected).abs().max() <= CLOSE * expected.abs().max()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("first", [True, False])
@torch.no_grad()
def test_a_translator_of_ours(first: bool, tied: bool, tmp_path: Path) -> None:
    import transformers

    torch.manual_seed(SEED)
    sizes = {"size": VOCABULARY, "width": 24, "heads": 4, "feed_forward": 32, "encoder_layers": 2, "decoder_layers": 1}
    model = randomized(TransformerTranslator(TransformerConfig(**sizes, norm_first=first, tied=tied)))
    save(model, tmp_path / "model")
    given = inputs(SEED)
    real = (torch.arange(given.tokens.shape[1]) < given.lengths[:, None]).long()
    other = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model").eval()
    expected = model(given.tokens, given.lengths, given.target)
    answers = other(input_ids=given.tokens, attention_mask=real, decoder_input_ids=given.target).logits
    again = load(tmp_path / "model")
    for found in (answers, again(given.tokens, given.lengths, given.target)):
        assert (found - expected).abs().max() <= CLOSE * expected.abs().max()
    rows = continued(again, given, 1, start=1, end=END)
    other.generation_config.suppress_tokens = None
    written = other.generate(input_ids=given.tokens, attention_mask=real, max_new_tokens=10, eos_token_id=END)
    same_ids(rows, [row[1:] for row in cut(written[:, :].tolist())], 1)


def cut(rows: list[list[int]]) -> list[list[int]]:
    return [row[: row.index(END)] if END in row else row for row in rows]


def randomized(model: Any) -> Any:
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4 if parameter.ndim > 1 else 0.2)
    return model.eval()
