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
