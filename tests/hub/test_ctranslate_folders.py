"""What CTranslate2 converts of a published folder computes the same, or is refused, as the page lists it."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.hub import theirs
from tests.hub.published import CASES, GENERATORS, PAIRS, VOCABULARY
from tokenizers import Tokenizer, models

import qkv
from qkv.errors import UnsupportedError
from qkv.hub.ctranslate_check import expect_same
from qkv.tasks.exporting import export
from qkv.tasks.translate.alignment_reading import AlignmentReading
from qkv.tasks.translate.predict import Translator

transformers = pytest.importorskip("transformers")
ctranslate2 = pytest.importorskip("ctranslate2")

PAGE = Path(__file__).parents[2] / "docs" / "how_to" / "export.md"
MARKS = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral_whole": ("mistral", {"sliding_window": None}),
    "qwen3_whole": ("qwen3", {"use_sliding_window": False}),
    "gpt2_epsilon": ("gpt2", {"layer_norm_epsilon": 1e-2}),
    "gemma_base": ("gemma", {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}),
    "llama_wide": ("llama", {"head_dim": 12}),
}
"""Further models of a family: their case, and the settings that differ."""
NAMES = [*MARKS.values(), *(f"w{number}" for number in range(VOCABULARY - len(MARKS)))]


def folder_of(name: str, parent: Path) -> Path:
    """A model as transformers writes it, with a token for each id; Marian's begins with padding, whose vector is 0."""
    model = theirs.make(name)
    config = model.config
    if name == "marian":
        with torch.no_grad():
            model.get_input_embeddings().weight[config.pad_token_id] = 0
    numbers = {"<s>": 1, "</s>": config.eos_token_id, "<unk>": 3, "<pad>": config.pad_token_id or 0}
    others = iter(sorted(set(range(VOCABULARY)) - set(numbers.values())))
    words = Tokenizer(models.WordLevel(numbers | {word: next(others) for word in NAMES[4:]}, unk_token="<unk>"))
    theirs.write(model, parent / name)
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, **MARKS).save_pretrained(parent / name)
    return parent / name


def listed() -> set[str]:
    """The cases that the page lists as converted."""
    (row,) = re.findall(r"<!-- converted: (.*) -->", PAGE.read_text(encoding="utf-8"))
    return set(row.split())


@pytest.mark.parametrize("name", [*GENERATORS, *PAIRS, *VARIANTS])
@pytest.mark.usefixtures("own_threads")
def test_a_published_model_is_converted_as_the_page_lists_or_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in VARIANTS:
        case, changes = VARIANTS[name]
        monkeypatch.setitem(CASES, name, CASES[case]._replace(settings=CASES[case].settings | changes))
    folder, out = folder_of(name, tmp_path), tmp_path / "out"
    if name not in listed():
        with pytest.raises(UnsupportedError, match="expected a model that CTranslate2 converts to the same model"):
            export(folder, "ctranslate2", out)
        assert not out.exists()
        return
    files = export(folder, "ctranslate2", out)
    assert {"model.bin", "config.json", "about.json"} <= set(files)
    assert not {"source", "converted"} & set(files)
    ids = torch.randint(6, VOCABULARY - 2, (1, 30), generator=torch.Generator().manual_seed(7))
    if name not in PAIRS:
        with torch.no_grad():
            want = theirs_of(folder, name)(ids).logits
        got = torch.from_numpy(np.array(ctranslate2.Generator(str(out)).forward_batch(ids.tolist())))
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def theirs_of(folder: Path, name: str) -> Any:
    return getattr(transformers, CASES[name].model).from_pretrained(folder).eval()


def test_a_converted_folder_of_another_model_is_refused(tmp_path: Path) -> None:
    export(folder_of("gpt2", tmp_path), "ctranslate2", tmp_path / "out")
    found = qkv.load(tmp_path / "gpt2", task="generate")
    with torch.no_grad():
        found.model.blocks[1].feed_forward.expand.bias[3] += 0.05
    with pytest.raises(UnsupportedError, match="its numbers differ by"):
        expect_same(found.model, found.tokenizer, tmp_path / "out")


def test_masked_models_and_readers_are_refused(tmp_path: Path) -> None:
    """CTranslate2 converts BERT as an encoder without its head, which fills no masks and labels nothing."""
    for name in ("bert", "bert_texts", "bert_tokens"):
        with pytest.raises(UnsupportedError):
            export(Path(__file__).parent / "families" / name, "ctranslate2", tmp_path / name)


@pytest.mark.parametrize(("name", "head"), [("marian", None), ("marian", 2), ("t5", 3)])
@pytest.mark.usefixtures("own_threads")
def test_a_converted_translator_returns_the_attention_that_aligns(
    name: str, head: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = folder_of(name, tmp_path), tmp_path / "out"
    translator = qkv.load(folder, task="translate")
    reading = AlignmentReading("decoder.0.cross_attention.attention", head)
    monkeypatch.setattr(Translator, "reading", reading)
    export(folder, "ctranslate2", out)
    names = json.loads((out / "shared_vocabulary.json").read_text(encoding="utf-8"))
    source = torch.randint(6, VOCABULARY - 2, (1, 8), generator=torch.Generator().manual_seed(7))
    (found,) = ctranslate2.Translator(str(out)).translate_batch(
        [[names[number] for number in source[0].tolist()]], beam_size=1, max_decoding_length=6, return_attention=True
    )
    target = torch.tensor([[translator.tokenizer.bos, *map(names.index, found.hypotheses[0])]])
    with torch.no_grad(), qkv.record(translator.model) as trace:
        translator.model(source, torch.tensor([8]), target)
    expected = reading.pick(trace.weights(reading.layer)[0])[: len(found.attention[0])]
    torch.testing.assert_close(torch.tensor(found.attention[0]), expected, rtol=1e-4, atol=1e-5)
