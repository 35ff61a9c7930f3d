"""Pairs with exchanged sides are found, however many they are, and honest pairs are not."""

from collections.abc import Callable
from datetime import date
from pathlib import Path
from random import Random

import pytest
from tests.pairs import in_turn

from qkv.data.corpus import Pair
from qkv.data.exchanged import exchanged_message, find_exchanged
from qkv.data.word_table import WordTable
from qkv.tasks.pairs import PairSources, read_training_pairs
from qkv.tasks.prepare.preparing import prepare
from qkv.tasks.translate.settings import TranslateFiles

Texts = Callable[[Random], tuple[str, str]]
_FIRST = [
    "der",
    "die",
    "ein",
    "eine",
    "Hund",
    "Katze",
    "Frau",
    "Mann",
    "sieht",
    "hat",
    "und",
    "auf",
    "im",
    "Haus",
    "klein",
    "alt",
]
_SECOND = [
    "the",
    "a",
    "one",
    "an",
    "dog",
    "cat",
    "woman",
    "man",
    "sees",
    "has",
    "and",
    "on",
    "in",
    "house",
    "small",
    "old",
]
_NAMES = ["Ada", "Bela", "Cleo", "Dora", "Emil", "Fritz", "Gina", "Hugo", "Ines", "Jan"]
_CYRILLIC = str.maketrans("abcdefghijklmnopqrstuvwxyz", "абцдефгхийклмнопярстувщхыз")
_UPSIDE_DOWN = str.maketrans("ACGT", "TGCA")


def _translated(random: Random) -> tuple[str, str]:
    words = [random.randrange(len(_FIRST)) for _ in range(random.randint(5, 10))]
    name = random.choice(_NAMES)
    return " ".join([name, *(_FIRST[word] for word in words)]), " ".join([name, *(_SECOND[word] for word in words)])


def _spelled(random: Random) -> tuple[str, str]:
    word = "".join(random.choices("abcdefgklmnoprstu", k=random.randint(4, 9)))
    return word, word.translate(_CYRILLIC)


def _commands(random: Random) -> tuple[str, str]:
    words = random.choices(["jump", "walk", "run", "look"], k=random.randint(3, 5))
    return " and ".join(words), " ".join(f"I_{word.upper()}" for word in words)


def _dated(random: Random) -> tuple[str, str]:
    day = date(random.randint(1950, 2050), random.randint(1, 12), random.randint(1, 28))
    return f"{day:%B} {day.day}, {day.year}", day.isoformat()


def _one_sentence(random: Random) -> str:
    return " ".join([random.choice(_NAMES), *random.choices(_SECOND, k=7)])


def _typo(random: Random) -> tuple[str, str]:
    text = _one_sentence(random)
    at = random.randrange(len(text) - 1)
    return text[:at] + text[at + 1] + text[at] + text[at + 2 :], text


def _either(random: Random, first: Texts, second: Texts) -> tuple[str, str]:
    return (first if random.random() < 0.5 else second)(random)


def _back(texts: Texts) -> Texts:
    return lambda random: texts(random)[::-1]


def _marked(mark: str, texts: Texts) -> Texts:
    return lambda random: (f"{mark} {(pair := texts(random))[0]}", pair[1])


def _negated(random: Random) -> tuple[str, str]:
    text = _one_sentence(random)
    both = text, f"{text} not"
    return both if random.random() < 0.5 else both[::-1]


def _introduced(random: Random) -> tuple[str, str]:
    first, second = random.sample(_NAMES, 2)
    return f"{first} , {second}", f"{second} {first}"


_HONEST: dict[str, Texts] = {
    "translated": _translated,
    "transliterated": _spelled,
    "commands": _commands,
    "dates": _dated,
    "copied": lambda random: (_one_sentence(random),) * 2,  # type: ignore[return-value]
    "paraphrased": lambda random: (_one_sentence(random), _one_sentence(random)),
    "spelling": _typo,
    "negated": _negated,
    "names": _introduced,
    "sorted": lambda random: (" ".join(words := random.choices(_SECOND, k=6)), " ".join(sorted(words))),
    "sums": lambda random: (f"{(a := random.randrange(99))}+{(b := random.randrange(99))}", f"{a + b}"),
    "code": lambda random: (f"x = f({(n := random.randrange(99))})", f"x = f({n})  # call {n}"),
    "complements": lambda random: (s := "".join(random.choices("ACGT", k=20)), s.translate(_UPSIDE_DOWN)),
    "untranslated": lambda random: _either(random, _translated, lambda r: (_translated(r)[0],) * 2),  # type: ignore[return-value]
    "marked": lambda random: _either(random, _marked("<en>", _translated), _marked("<de>", _back(_translated))),
    "one pivot": lambda random: _either(random, _back(_translated), lambda r: _spelled(r)[::-1]),
}


def _pairs(texts: Texts, count: int, seed: int) -> list[Pair]:
    random = Random(seed)
    return [Pair(*texts(random), line) for line in range(1, count + 1)]


def _with_exchanged(pairs: list[Pair], share: float, seed: int) -> tuple[list[Pair], set[int]]:
    random = Random(seed)
    lines = {pair.line for pair in pairs if random.random() < share}
    return [Pair(p.target, p.source, p.line) if p.line in lines else p for p in pairs], lines


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5])
@pytest.mark.parametrize("kind", ["translated", "transliterated", "commands", "dates"])
def test_exchanged_pairs_are_found_and_no_others(kind: str, share: float) -> None:
    pairs, lines = _with_exchanged(_pairs(_HONEST[kind], 800, seed=1), share, seed=2)
    found = {pair.line for pair in find_exchanged(pairs)[0]}
    others = {pair.line for pair in pairs} - lines
    # With as many lines of each direction, either can be the usual one.
    assert found <= lines or (share == 0.5 and found <= others)
    assert len(found) > 0.8 * min(len(lines), len(others))


@pytest.mark.parametrize(("kind", "count"), in_turn(_HONEST, [1, 19, 24, 60, 800], every=3))
def test_honest_pairs_are_not_reported(kind: str, count: int) -> None:
    assert find_exchanged(_pairs(_HONEST[kind], count, seed=count)) == ([], count)


def test_pairs_that_all_occur_in_both_directions_are_meant() -> None:
    pairs = _pairs(_translated, 400, seed=3)
    both = [*pairs, *(Pair(pair.target, pair.source, pair.line + 400) for pair in pairs)]
    assert exchanged_message(both) is None


def test_more_pairs_than_are_judged_are_sampled() -> None:
    pairs, lines = _with_exchanged(_pairs(_translated, 25_000, seed=4), 0.05, seed=5)
    exchanged, judged = find_exchanged(pairs)
    assert 10_000 < judged < 20_000
    assert len(exchanged) > 500
    assert {pair.line for pair in exchanged} <= lines


def test_validation_pairs_are_judged_by_those_to_train_on() -> None:
    train, valid = _pairs(_translated, 400, seed=6), _pairs(_translated, 30, seed=7)
    turned = [Pair(pair.target, pair.source, pair.line) for pair in valid]
    assert exchanged_message(valid, train) is None
    assert exchanged_message(turned) is None
    message = exchanged_message(turned, train)
    assert message is not None
    assert "of 30 lines" in message


def test_validation_pairs_of_one_direction_fit_those_of_both() -> None:
    train = _pairs(lambda random: _either(random, _translated, _back(_translated)), 400, seed=8)
    valid = _pairs(_translated, 60, seed=9)
    assert exchanged_message(valid, train) is None
    assert exchanged_message([Pair(pair.target, pair.source, pair.line) for pair in valid], train) is None


def test_message_names_a_line_and_both_of_its_texts() -> None:
    pairs = _pairs(_translated, 100, seed=10)
    pairs[6] = Pair(pairs[6].target, pairs[6].source, 7)
    message = exchanged_message(pairs)
    assert message is not None
    assert "line 7," in message
    assert pairs[6].source[:20] in message
    assert pairs[6].target[:20] in message


def _written(folder: Path, name: str, pairs: list[Pair]) -> Path:
    path = folder / name
    path.write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in pairs), encoding="utf-8")
    return path


@pytest.mark.parametrize("table", [None, WordTable()])
def test_files_to_train_and_to_validate_on_are_named(
    table: WordTable | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train, _ = _with_exchanged(_pairs(_spelled, 200, seed=11), 0.2, seed=12)
    data = _written(tmp_path, "train.tsv", train)
    PairSources(data=data).read(table)
    assert f"{data}: source and target seem exchanged" in capsys.readouterr().err
    right, turned = _pairs(_spelled, 200, seed=13), [Pair(p.target, p.source, 1) for p in _pairs(_spelled, 9, seed=14)]
    data, valid = _written(tmp_path, "train.tsv", right), _written(tmp_path, "valid.tsv", turned)
    read_training_pairs(TranslateFiles(data=data, valid_data=valid), seed=0, table=table)
    message = capsys.readouterr().err
    assert f"{valid}: source and target seem exchanged" in message
    assert str(data) not in message


def test_a_prepared_corpus_reports_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs, _ = _with_exchanged(_pairs(_translated, 300, seed=15), 0.2, seed=16)
    prepare(_written(tmp_path, "train.tsv", pairs), out=tmp_path / "corpus", pairs=True, tokenizer="word")
    assert "source and target seem exchanged" in capsys.readouterr().err
