"""Unknown words, output as the source words they came from."""

from pathlib import Path

import pytest
import torch
from results.introductions import splits

from qkv.data.corpus import Pair
from qkv.data.tokenizer import Tokenizer
from qkv.errors import ConfigError
from qkv.models.configs.translator import RecurrentConfig, TransformerConfig
from qkv.models.recurrent_translator import RecurrentTranslator
from qkv.models.translator import TransformerTranslator
from qkv.tasks.run import train_run
from qkv.tasks.translate.aligner import Aligner
from qkv.tasks.translate.alignment_reading import AlignmentReading
from qkv.tasks.translate.decoding import Decoding
from qkv.tasks.translate.predict import Translator
from qkv.tasks.translate.recipe import RECIPE
from qkv.tasks.translate.unknown import as_unknown, choose_reading, identical_links

SIZES: dict[str, dict[str, int]] = {
    "gru": {"embedding": 32, "hidden": 64, "attention": 32},
    "transformer": {"width": 64, "heads": 4, "feed_forward": 128, "encoder_layers": 2, "decoder_layers": 2},
}


def _translator(kind: str = "word") -> Translator:
    """An untrained model whose output layer always prefers the unknown token."""
    torch.manual_seed(0)
    tokenizer = Tokenizer.learn(["my name is , hello"] * 9, kind=kind, size=300)
    model = RecurrentTranslator(RecurrentConfig(size=tokenizer.size, embedding=8, hidden=8, attention=8, tied=False))
    with torch.no_grad():
        model.output.bias[tokenizer.unk] = 50
    return Translator(model, tokenizer)


def test_every_unknown_word_becomes_the_source_word_it_attends_to() -> None:
    translator = _translator()
    line = "my name is Zuri"
    (found,) = translator.translate_fully([line], Decoding(unknown=AlignmentReading("attention")), attention=True)
    assert found.weights is not None
    expected = [line.split()[place] for place in found.weights[:-1].argmax(-1).tolist()]
    assert list(found.target_tokens[:-1]) == expected
    assert found.text == " ".join(expected)
    assert "<unk>" in translator.translate_fully([line])[0].text


def test_an_empty_line_stays_empty() -> None:
    assert _translator().translate([""], Decoding(unknown=AlignmentReading("attention"))) == [""]


def familiar(pairs: list[Pair], pool: int = 100) -> list[Pair]:
    """Nine of ten pairs with names from a small pool: if every name is unknown, none is worth attending to."""
    names = list(dict.fromkeys(word for pair in pairs for word in pair.source.split() if is_name(word)))
    known = {name: names[place % pool] for place, name in enumerate(names)}

    def renamed(text: str) -> str:
        return " ".join(known.get(word, word) for word in text.split())

    return [
        pair if pair.line % 10 == 0 else Pair(renamed(pair.source), renamed(pair.target), pair.line) for pair in pairs
    ]


def is_name(word: str) -> bool:
    return word[0].isupper() and word != "I"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gru", "transformer"])
def test_names_never_seen_are_found_by_the_reading_chosen_on_held_out_pairs(tmp_path: Path, kind: str) -> None:
    sets = splits(5000, 100, 200, seed=0)
    for name, pairs in (("t", familiar(sets.train)), ("v", sets.validation)):
        (tmp_path / f"{name}.src").write_text("".join(f"{pair.source}\n" for pair in pairs))
        (tmp_path / f"{name}.tgt").write_text("".join(f"{pair.target}\n" for pair in pairs))
    tables = {
        "data": {"source": tmp_path / "t.src", "target": tmp_path / "t.tgt"},
        "tokenizer": {"tokenizer": "word", "minimum": 5},
        "model": {"model": kind, "dropout": 0.1, **SIZES[kind]},
        "training": {
            "steps": 500,
            "batch_tokens": 1024,
            "learning_rate": 0.004 if kind == "gru" else 0.002,
            "warmup": 60,
            "validate_every": 500,
        },
    }
    assert train_run(RECIPE, RECIPE.load_settings(tables), tmp_path / "run").exit_code == 0
    translator = Translator.load(tmp_path / "run")
    given = tmp_path / "v.src", tmp_path / "v.tgt"
    readings = [as_unknown(translator, True, *files) for files in (given, (None, None))]
    assert all(readings)
    sources, targets = [pair.source for pair in sets.test], [pair.target for pair in sets.test]
    plain, *replaced = (
        [each.text for each in translator.translate_fully(sources, how)]
        for how in (Decoding(), *(Decoding(unknown=reading) for reading in readings))
    )
    assert not any("<unk>" in line for lines in replaced for line in lines)
    shares = [sum(a == b for a, b in zip(found, targets, strict=True)) / 200 for found in (plain, *replaced)]
    assert shares[0] < 0.05
    assert min(shares[1:]) > 0.5


def test_the_reading_is_chosen_by_words_that_are_the_same() -> None:
    torch.manual_seed(0)
    tokenizer = Tokenizer.learn(["a b c d"] * 9, kind="word")
    sizes = {"width": 8, "heads": 2, "feed_forward": 8, "encoder_layers": 1, "decoder_layers": 2}
    aligner = Aligner(Translator(TransformerTranslator(TransformerConfig(size=tokenizer.size, **sizes)), tokenizer))
    pairs = [Pair("a b Zuri", "Zuri c d", 1), Pair("a", "b", 2)]
    chosen = choose_reading(aligner, pairs)
    assert chosen.layer in aligner.layers
    gold = identical_links(pairs[0])
    assert gold == {(2, 0)}
    best = len(gold & aligner.align(pairs, chosen)[0])
    for layer in aligner.layers:
        for when in ("at", "after"):
            assert len(gold & aligner.align(pairs, AlignmentReading(layer, None, when))[0]) <= best  # type: ignore[arg-type]


def test_flags_that_do_not_fit_are_named(tmp_path: Path) -> None:
    translator = _translator()
    assert as_unknown(translator, False, None, None) is None
    assert as_unknown(translator, True, None, None) == AlignmentReading("attention")
    with pytest.raises(ConfigError, match="valid_source: expected replace_unknown as well"):
        as_unknown(translator, False, tmp_path, None)
    with pytest.raises(ConfigError, match="valid_source: expected valid_source and valid_target"):
        as_unknown(translator, True, tmp_path, None)
    with pytest.raises(ConfigError, match="pieces of bytes, which can write any word"):
        as_unknown(_translator("bpe"), True, None, None)
    with pytest.raises(ConfigError, match="words that occur on both sides; got none"):
        choose_reading(Aligner(translator), [Pair("hello", "name", 1)])
