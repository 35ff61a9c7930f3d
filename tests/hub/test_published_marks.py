"""The special tokens of published folders: what ends a text, and what is never written."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import qkv
from qkv.data.batches import Example
from qkv.data.corpus import Pair
from qkv.data.tokenizer import Tokenizer
from qkv.errors import CheckpointError
from qkv.hub.families.load import FAMILIES
from qkv.models.configs.language_model import DecoderConfig
from qkv.models.configs.translator import TransformerConfig
from qkv.models.language_model import LanguageModel
from qkv.models.translator import TransformerTranslator
from qkv.tasks.corpora.pairs import PairsInMemory
from qkv.tasks.corpora.text import TextInMemory
from qkv.tasks.generate.predict import Generator
from qkv.tasks.generate.recipe import LanguageTask
from qkv.tasks.translate.decoding import Decoding
from qkv.tasks.translate.predict import Translator
from qkv.tasks.translate.recipe import TranslationTask

HERE = Path(__file__).parent / "families"
TEXT = "the cat sat on the mat"
PLAIN = {"training": {"label_smoothing": 0.0}}


def changed(name: str, folder: Path, file: str = "generation_config.json", **settings: Any) -> Path:
    """Copy a folder, with other settings in one of its files."""
    shutil.copytree(HERE / name, folder)
    path = folder / file
    table = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(table | settings))
    return folder


def written(translator: Translator, how: Decoding) -> list[int]:
    """The ids of a translation, by the names of its tokens."""
    number_of = {translator.tokenizer.pieces([number])[0]: number for number in range(translator.tokenizer.size)}
    (translation,) = translator.translate_fully([TEXT], how)
    return [number_of[piece] for piece in translation.target_tokens[:-1]]


@pytest.mark.parametrize("beam", [1, 3])
def test_each_of_several_end_tokens_ends_a_translation(beam: int, tmp_path: Path) -> None:
    how = Decoding(beam=beam, max_tokens=9)
    translator = qkv.load(HERE / "marian")
    ids = written(translator, how)
    end = ids[2]
    ends = {"eos_token_id": [translator.tokenizer.eos, end]}
    again = qkv.load(changed("marian", tmp_path / "model", **ends))
    assert written(again, how) == ids[: ids.index(end)]
    (translation,) = again.translate_fully([TEXT], how)
    assert translation.finished
    assert translation.target_tokens[-1] == "<eos>"


@pytest.mark.parametrize("beam", [1, 3])
def test_tokens_that_are_ruled_out_are_not_written(beam: int, tmp_path: Path) -> None:
    how = Decoding(beam=beam, max_tokens=9)
    first, *_, last = written(qkv.load(HERE / "marian"), how)
    ruled_out = {"suppress_tokens": [first], "bad_words_ids": [[last], [7, 8]]}
    found = qkv.load(changed("marian", tmp_path / "model", **ruled_out))
    assert not {first, last} & set(written(found, how))
    qkv.hub.save(found, tmp_path / "again")
    assert qkv.load(tmp_path / "again").tokenizer.to_json() == found.tokenizer.to_json()


def test_words_that_are_no_lists_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="bad_words_ids: expected lists of tokens"):
        qkv.load(changed("marian", tmp_path / "model", bad_words_ids=[3]))


@pytest.mark.parametrize("kind", ["generate", "translate"])
def test_what_our_models_never_write_stays_so_after_saving(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    tokenizer = Tokenizer.learn([TEXT] * 3, size=300)
    sizes: dict[str, Any] = {"size": tokenizer.size, "width": 16, "heads": 2, "feed_forward": 16}
    ours: Generator | Translator
    if kind == "generate":
        ours = Generator(LanguageModel(DecoderConfig(layers=1, **sizes)), tokenizer)
    else:
        model = TransformerTranslator(TransformerConfig(encoder_layers=1, decoder_layers=1, **sizes))
        ours = Translator(model, tokenizer)
    qkv.hub.save(ours, tmp_path / "model")
    assert set(qkv.load(tmp_path / "model").tokenizer.never_written) == set(tokenizer.never_written)


@pytest.mark.parametrize(("name", "mark"), [("llama", "eos"), ("marian", "eos")])
def test_a_mark_that_no_file_names_is_that_of_the_family(name: str, mark: str, tmp_path: Path) -> None:
    folder, setting = tmp_path / "model", f"{mark}_token_id"
    shutil.copytree(HERE / name, folder)
    for file in folder.glob("*config.json"):
        table = json.loads(file.read_text())
        file.write_text(json.dumps({key: item for key, item in table.items() if key != setting}))
    tokenizer = qkv.load(folder).tokenizer
    usual = FAMILIES[name].defaults[setting]
    assert getattr(tokenizer, mark) == (usual if usual < tokenizer.size else -1)
    changed_config = json.loads((folder / "config.json").read_text()) | {setting: None}
    (folder / "config.json").write_text(json.dumps(changed_config))
    assert getattr(qkv.load(folder).tokenizer, mark) in (-1, tokenizer.eos)


def test_an_end_token_that_pads_is_learned_too(tmp_path: Path) -> None:
    """Both tasks count each token of each target, as their validation does; padding by position, not by number."""
    tokenizer = qkv.load(changed("marian", tmp_path / "one", "config.json", pad_token_id=5)).tokenizer
    assert tokenizer.pad == tokenizer.eos == 5
    examples = PairsInMemory([Example((7, 8, 5), (9,), 0), Example((6, 5), (7, 9, 6), 1)], tokenizer)
    translator = qkv.load(tmp_path / "one")
    settings = TranslationTask.load_settings(PLAIN)
    task = TranslationTask(settings, tokenizer, examples, [Pair("a", "b", 1)], examples, "")
    batch = task.collate([0, 1], torch.device("cpu"))
    loss, count = task.objective(translator.model, batch)
    rows = F.log_softmax(translator.model(batch.source, batch.source_lengths, batch.target[:, :-1]), -1)
    wanted = [(0, 0, 9), (0, 1, 5), (1, 0, 7), (1, 1, 9), (1, 2, 6), (1, 3, 5)]
    assert count == len(wanted)
    torch.testing.assert_close(loss, -sum(rows[row][place, token] for row, place, token in wanted))

    reader = qkv.load(changed("llama", tmp_path / "two", "config.json", pad_token_id=None))
    ids = torch.tensor([5, 6, 5, 5, 7, 8, 5, 9])
    passage = TextInMemory(ids, 8, 0, reader.tokenizer)
    learned = LanguageTask(LanguageTask.load_settings(PLAIN), reader.tokenizer, passage, passage, {})
    window = ids[None]
    loss, count = learned.objective(reader.model, window)
    assert count == 7
    torch.testing.assert_close(loss, F.cross_entropy(reader.model(window[:, :-1])[0], ids[1:], reduction="sum"))
