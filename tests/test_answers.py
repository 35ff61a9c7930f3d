"""The examples of the README answer what they say."""

import re
from pathlib import Path
from random import Random

import pytest
from tests.cli.command import run, succeeded

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_two_sentences_are_translated_as_the_readme_says() -> None:
    block = next(block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "qkv.train(" in block)
    lines = block.splitlines()
    first = next(place for place, line in enumerate(lines) if "qkv.train(" in line)
    small = 'steps=60, model="gru", width=32, tokenizer="word", dropout=0.0, learning_rate=0.02, warmup=5, quiet=True'
    training, answer = lines[first].replace("steps=200", small), lines[first + 1]
    assert small in training
    call, _, expected = answer.partition("  # ")
    scope: dict[str, object] = {}
    exec(f"import qkv\n{training}\nanswer = {call}\nboth = run.load().translate(['ein Hund', 'eine Katze'])", scope)
    assert repr(scope["answer"]) == expected
    assert scope["both"] == ["a dog", "a cat"]


def test_elements_are_sorted_as_the_readme_says() -> None:
    random = Random(0)
    rows = []
    for _ in range(400):
        numbers = random.sample(range(1, 100), 3)
        order = sorted(range(3), key=numbers.__getitem__)
        rows.append(f"{' '.join(map(str, numbers))}\t{' '.join(str(place + 1) for place in order)}\n")
    Path("sort.tsv").write_text("".join(rows))
    train = next(line for line in README.splitlines() if line.startswith("qkv train point")).partition("#")[0].split()
    small = ("--model", "gru", "--width", "32", "--steps", "250", "--batch-tokens", "300", "--quiet")
    succeeded(run(*train[1:], *small))
    ask = next(line for line in README.splitlines() if "qkv point" in line)
    feed, expected = re.findall(r'echo "(.*?)".*# (.*)', ask)[0]
    assert succeeded(run("point", "runs/sort", feed=f"{feed}\n")).stdout.strip() == expected.strip()


def test_a_rent_is_predicted_as_the_readme_says() -> None:
    random = Random(0)
    rows = [(area, 300 + 8 * area + random.gauss(0, 20)) for area in range(30, 120)]
    Path("rents.csv").write_text("area,rent\n" + "".join(f"{area},{rent}\n" for area, rent in rows))
    train = next(line for line in README.splitlines() if line.startswith("qkv train regress")).split()
    succeeded(run(*train[1:]))
    header, row = succeeded(run("regress", "runs/rent", feed="75\n")).stdout.splitlines()
    assert header == "area,rent,low,high"
    area, rent, low, high = map(float, row.split(","))
    assert area == 75
    assert low < rent < high
    assert abs(rent - 900) < 40


def test_the_translator_of_the_package_answers_as_the_readme_says() -> None:
    line = next(line for line in README.splitlines() if "qkv translate example" in line)
    sentence, expected = re.findall(r'echo "(.*?)".*# (.*)', line)[0]
    assert succeeded(run("translate", "example", feed=f"{sentence}\n")).stdout.strip() == expected.strip()


def test_a_film_gets_the_label_of_its_words() -> None:
    random = Random(0)
    words = {"good": ["stirring", "funny", "warm", "bright"], "bad": ["dull", "slow", "flat", "stale"]}
    pick = [(label, random.sample(words[label], 2)) for label in words for _ in range(60)]
    Path("films.tsv").write_text("".join(f"{label}\ta {one} , {two} film\n" for label, (one, two) in pick))
    ask = next(line for line in README.splitlines() if "| qkv classify " in line)
    small = ("--width", "16", "--batch-tokens", "300", "--steps", "60", "--learning-rate", "0.05", "--quiet")
    succeeded(run(*_command("qkv train classify"), *small))
    sentence = re.findall(r'echo "(.*?)"', ask)[0]
    good, bad = succeeded(run("classify", "runs/films", feed=f"{sentence}\na dull , slow film\n")).stdout.splitlines()
    assert [line.split()[0] for line in (good, bad)] == ["good", "bad"]
    assert all(0.8 < float(line.split()[1]) <= 1 for line in (good, bad)), "the label and its probability"


def test_words_are_aligned_in_the_form_that_the_readme_shows() -> None:
    words = {"ein": "a", "Hund": "dog", "sieht": "sees", "sucht": "seeks"}
    german = [f"{a} {b} {c}" for a in words for b in words for c in words]
    english = [" ".join(words[word] for word in line.split()) for line in german]
    for language, lines in (("de", german), ("en", english)):
        Path(f"train.{language}").write_text("".join(f"{line}\n" for line in lines))
        Path(f"test.{language}").write_text("".join(f"{line}\n" for line in lines[:4]))
    train, align = (_command(f"qkv {name} ") for name in ("train translate", "align"))
    succeeded(run(*train, "--width", "16", "--steps", "4", "--tokenizer", "word", "--quiet"))
    answers = succeeded(run(*align)).stdout.splitlines()
    assert len(answers) == 4
    for answer in answers:
        assert re.fullmatch(r"\d+-\d+( \d+-\d+)*", answer)
        assert all(int(place) < 3 for link in answer.split() for place in link.split("-"))


def _command(start: str) -> list[str]:
    """The words of a command of the README, after `qkv`."""
    return next(line for line in README.splitlines() if line.startswith(start)).partition("#")[0].split()[1:]
