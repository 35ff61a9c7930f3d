"""Copying end to end: files, training, beam search, unknown names, and the source of each word."""

from pathlib import Path

import pytest
from results.introductions import splits

from qkv.data.corpus import Pair
from qkv.data.open_vocabulary import decode_open, encode_source, encode_target, pieces_open
from qkv.data.tokenizer import Tokenizer
from qkv.errors import ConfigError
from qkv.tasks.run import train_run
from qkv.tasks.translate.decoding import Decoding
from qkv.tasks.translate.predict import Translator
from qkv.tasks.translate.recipe import RECIPE

_SIZES = {
    "gru": {"embedding": 32, "hidden": 64, "attention": 32, "dropout": 0.0},
    "transformer": {"width": 64, "heads": 4, "feed_forward": 128, "encoder_layers": 2, "decoder_layers": 2},
}


def _file(path: Path, pairs: list[Pair]) -> Path:
    path.write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in pairs), encoding="utf-8")
    return path


def _trained(folder: Path, kind: str, copy: str, steps: int, count: int) -> tuple[Translator, list[Pair]]:
    sets = splits(count, max(4, count // 50), 200, seed=0)
    data = {"data": _file(folder / "t.tsv", sets.train), "valid_data": _file(folder / "v.tsv", sets.validation)}
    tables = {
        "data": data,
        "tokenizer": {"tokenizer": "word", "minimum": 5},
        "model": {"model": kind, "copy": copy, **_SIZES[kind], "dropout": 0.1},
        "training": {
            "steps": steps,
            "batch_tokens": 1024,
            "learning_rate": 0.004 if kind == "gru" else 0.002,
            "warmup": min(60, steps),
            "validate_every": steps,
            "label_smoothing": 0.0,
        },
    }
    outcome = train_run(RECIPE, RECIPE.load_settings(tables), folder / "run")
    assert outcome.exit_code == 0
    return Translator.load(folder / "run"), sets.test


def _exact(found: list[str], pairs: list[Pair]) -> float:
    return sum(one == pair.target for one, pair in zip(found, pairs, strict=True)) / len(pairs)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "copy"), [("gru", "mixture"), ("gru", "joint"), ("transformer", "mixture")])
def test_names_never_seen_are_copied(tmp_path: Path, kind: str, copy: str) -> None:
    translator, pairs = _trained(tmp_path, kind, copy, 500, 5000)
    sources = [pair.source for pair in pairs]
    assert _exact(translator.translate(sources), pairs) >= 0.98
    assert _exact(translator.translate(sources, beam=4), pairs) >= 0.98


@pytest.mark.slow
def test_without_copying_no_new_name_can_be_written(tmp_path: Path) -> None:
    translator, pairs = _trained(tmp_path, "gru", "none", 300, 5000)
    found = translator.translate_fully([pair.source for pair in pairs])
    assert _exact([each.text for each in found], pairs) == 0


def test_a_model_that_copies_goes_through_files_and_checkpoints(tmp_path: Path) -> None:
    translator, pairs = _trained(tmp_path, "gru", "mixture", 3, 60)
    sources = [pair.source for pair in pairs[:2]]
    together = translator.translate_best(sources, Decoding(beam=3, n_best=2), attention=True)
    for source, found in zip(sources, together, strict=True):
        (alone,) = translator.translate_best([source], Decoding(beam=3, n_best=2))
        assert [one.text for one in alone] == [one.text for one in found]
        best = found[0]
        assert best.origins is not None
        assert len(best.origins) == len(best.target_tokens) - 1
        for token, origin in zip(best.target_tokens[:-1], best.origins, strict=True):
            assert origin is None or best.source_tokens[origin] == token
        assert best.weights is not None
        assert best.weights.shape == (len(best.target_tokens), len(best.source_tokens))


def test_smoothing_is_refused_where_words_are_copied() -> None:
    with pytest.raises(ConfigError, match="label_smoothing: expected 0 for a model that copies"):
        RECIPE.load_settings({"model": {"model": "gru", "copy": "joint"}, "training": {"label_smoothing": 0.1}})
    settings = RECIPE.load_settings({"model": {"copy": "joint"}})
    assert settings.tokenizer.tokenizer == "word"
    assert settings.training.label_smoothing == 0


def test_unknown_words_come_back_as_they_were() -> None:
    tokenizer = Tokenizer.learn(["my name is , and you ?"] * 2, kind="word", minimum=2)
    source = encode_source("my name is Zuri, and (Ada) you?", tokenizer)
    assert source.unknown == ("Zuri", "(", "Ada", ")")
    assert pieces_open(source.ids, tokenizer, source.unknown)[3] == "Zuri"
    target = encode_target("Ada , Zuri and Bob", tokenizer, source.unknown)
    assert target[-1] == tokenizer.unk
    assert decode_open(target[:-1], tokenizer, source.unknown) == "Ada , Zuri and"


def test_characters_and_byte_pairs_copy_too() -> None:
    characters = Tokenizer.learn(["abc"], kind="char")
    source = encode_source("abßb", characters)
    assert source.unknown == ("ß",)
    assert decode_open(source.ids, characters, source.unknown) == "abßb"
    pairs = Tokenizer.learn(["abc"], kind="bpe", size=300)
    assert encode_source("ß", pairs).unknown == ()
