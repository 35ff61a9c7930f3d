"""The code cells of a chapter, as the site's build runs them."""

import re
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "docs" / "course"
CHAPTERS = sorted(FOLDER.glob("[0-9]_*.md"))
_CELL = re.compile(r"^```\{code-cell\} ipython3\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
_OPTIONS = re.compile(r"\A(:[a-z]+:.*\n)+\n?")


def cells(chapter: Path) -> list[str]:
    """Return the code of a chapter, cell by cell."""
    return [_OPTIONS.sub("", cell) for cell in _CELL.findall(chapter.read_text(encoding="utf-8"))]
