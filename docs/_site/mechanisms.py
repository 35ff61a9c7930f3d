"""Write the tables of scores and normalizers into the pages that show them: `python docs/_site/mechanisms.py`."""

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from qkv.normalizers.catalog import NORMALIZERS
from qkv.scores.catalog import SCORES
from qkv.values.catalog import Catalog, Entry, as_flag

DOCS = Path(__file__).parents[1]
_BEGIN = "<!-- {}: begin, made by python docs/_site/mechanisms.py -->"
_END = "<!-- {}: end -->"


def names(catalog: Catalog[Any]) -> str:
    """Return a table of what flags accept."""
    rows = (
        (", ".join(f"`{as_flag(each)}`" for each in (name, *entry.aliases)), entry.equation.plain, entry.note)
        for name, entry in catalog.items()
    )
    return _table(("names", "equation", ""), rows)


def classes(catalog: Catalog[Any], module: str) -> str:
    """Return a table of the classes of a module, with the arguments of each."""
    rows = (
        (f"`{_call(entry)}`", f"`{as_flag(name)}`", f"${entry.equation.tex}$", entry.note, entry.source)
        for name, entry in catalog.items()
        if entry.cls.__module__.rpartition(".")[2] == module
    )
    return _table(("class", "name in flags", "equation", "", "source"), rows)


def _call(entry: Entry[Any]) -> str:
    parameters = inspect.signature(entry.cls).parameters.values()
    values = {one.name: entry.fixed.get(one.name, one.default) for one in parameters}
    given = (name if value is inspect.Parameter.empty else f"{name}={value!r}" for name, value in values.items())
    return f"{entry.kind}({', '.join(given)})"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows))


TABLES: Mapping[str, tuple[str, Callable[[], str]]] = {
    "scores": ("how_to/train.md", lambda: names(SCORES)),
    "normalizers": ("how_to/train.md", lambda: names(NORMALIZERS)),
    "products": ("understanding/mechanisms/products.md", lambda: classes(SCORES, "products")),
    "sums": ("understanding/mechanisms/sums.md", lambda: classes(SCORES, "sums")),
    "kernels": ("understanding/mechanisms/kernels.md", lambda: classes(SCORES, "kernels")),
    "free": ("understanding/mechanisms/lookup.md", lambda: classes(SCORES, "free")),
    "dense": ("understanding/mechanisms/normalizers.md", lambda: classes(NORMALIZERS, "dense")),
    "sparse": ("understanding/mechanisms/normalizers.md", lambda: classes(NORMALIZERS, "sparse")),
}
"""The page and the text of each table."""


def written(name: str, text: str) -> str:
    """Return the text of a page with one of its tables as the catalogs have it.

    Raises:
        ValueError: the page does not have that table.
    """
    begin, end = _BEGIN.format(name), _END.format(name)
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"no table between {begin} and {end}")
    table = f"{begin}\n{TABLES[name][1]()}\n{end}"
    return pattern.sub(lambda _: table, text)


def main() -> int:
    """Write all tables."""
    for name, (page, _) in TABLES.items():
        path = DOCS / page
        path.write_text(written(name, path.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
