"""The table of architectures: what the page says is what happens."""

import re

import pytest

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

from results.architectures import IMAGES, PAGE, SOUNDS, TEXT, TRANSLATORS, Line, judge, page  # noqa: E402

ALL = (*TEXT, *TRANSLATORS, *IMAGES, *SOUNDS)
LINES = {line.split(" | ")[0].removeprefix("| "): line for line in PAGE.read_text(encoding="utf-8").splitlines()[10:]}
FEW = (
    "gemma3_text",
    "deepseek_v3",
    "diffllama",
    "modernbert",
    "falcon",
    "longt5",
    "umt5",
    "siglip_vision_model",
    "whisper",
)


def check(name: str) -> None:
    line, row = judge(name), LINES[name]
    says = "runs and records" if line.kind == "runs" else "refused by name"
    assert f"| {name} | {says} | " in row
    assert str(line).split(" | ")[2] == row.split(" | ")[2]


def test_the_page_lists_every_architecture_tried() -> None:
    assert len(set(ALL)) == len(ALL) >= 50
    assert set(ALL) == set(LINES)
    counts = re.search(r"(\d+) of (\d+) architectures run", PAGE.read_text(encoding="utf-8"))
    assert counts is not None
    runs = sum("runs and records" in row for row in LINES.values())
    assert (int(counts[1]), int(counts[2])) == (runs, len(ALL))


@pytest.mark.parametrize("name", FEW)
def test_what_the_page_says_of_an_architecture_happens(name: str) -> None:
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ALL if name not in FEW])
def test_what_the_page_says_of_every_other_architecture_happens(name: str) -> None:
    check(name)


def test_a_page_counts_what_runs() -> None:
    shown = page(
        [Line("a", "runs", 2, 1e-7), Line("b", "refused", reason="B: x.y"), Line("c", "runs", 1, 0.0, compared=False)]
    )
    assert "2 of 3 architectures" in shown
    assert "| b | refused by name | | B: x.y |" in shown
    assert "| c | runs and records | 1; only outputs compared |" in shown
