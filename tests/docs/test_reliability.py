"""The page of reliability counts what the tests hold, and its commands select the tests that they stand beside."""

import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest
from tests.data.defects import READ, REFUSED
from tests.fuzz.targets import targets
from tests.reliability.families import FAMILIES
from tests.reliability.refused import JOBS
from tests.view.browser import test_hash, test_hostile

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "project" / "reliability.md"
PAGES = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
WORDS = dict(zip(("six", "seven", "eight", "nine", "ten"), range(6, 11), strict=True))
COUNTS = {
    r"reads (\w+) kinds of corrupted files": [len(targets())],
    r"of all (\w+) kinds: none": [len(targets())],
    r"a table of (\w+) defects that are refused and (\w+) oddities": [len(REFUSED), len(READ) - 1],  # one is sound
    r"(\w+) names, (\w+) hostile values each, (\w+) views": [
        len(test_hash._NAMES),
        len(test_hash._VALUES),
        len(test_hash._READY),
    ],
    r"(\w+) hostile titles .* with (\w+) tokens": [len(test_hostile._NAMES), len(test_hostile._TOKENS)],
    r"(\w+) models were tested": [len(FAMILIES)],
    r"moments of (\w+) commands": [len(JOBS)],
}
"""Sentences of the page with the number that each of their words means."""


@pytest.mark.parametrize("sentence", COUNTS)
def test_what_the_page_counts_is_what_the_tests_hold(sentence: str) -> None:
    match = re.search(sentence, PAGE.read_text(encoding="utf-8"))
    assert match is not None
    counted = [WORDS.get(word.lower()) or int(word) for word in match.groups()]
    assert counted == COUNTS[sentence]


def selections() -> Iterator[tuple[str, str, str]]:
    """Yield page, files and words of each command of pytest that selects tests by their names."""
    for page in PAGES:
        for arguments in re.findall(r"\bpytest ([^`\n|]*)", page.read_text(encoding="utf-8")):
            if match := re.search(r'-k (?:"([^"]+)"|(\w+))', arguments):
                files, words = re.findall(r"tests/\S+", arguments), re.split(" or ", match[1] or match[2])
                yield from ((page.name, file, word) for file in files for word in words)


@pytest.mark.parametrize(("page", "path", "word"), sorted(set(selections())))
def test_a_word_that_selects_tests_is_in_a_test_and_not_in_every_one(page: str, path: str, word: str) -> None:
    """A word in the name of a file selects all of its tests."""
    files = [ROOT / path] if path.endswith(".py") else sorted((ROOT / path).rglob("test_*.py"))
    assert not [file for file in files if fnmatch(file.relative_to(ROOT).as_posix(), f"*{word}*")]
    names = re.findall(r"^ *def (test_\w+)", "\n".join(file.read_text("utf-8") for file in files), re.MULTILINE)
    assert any(word in name for name in names)
