"""Check a built site: every link and picture leads to a file and an anchor, and no page loads from another host."""

import re
from functools import cache
from html import unescape
from pathlib import Path
from urllib.parse import unquote

_REFERENCE = re.compile(r"""<(\w+)\b[^>]*?\s(?:href|src)="([^"]*)\"""")
_LOADED = re.compile(r"url\((?:'|\")?(https?:)?//")


def check(site: Path) -> list[str]:
    """Return what is broken.

    Args:
        site: the folder of a site.

    Returns:
        One line for each broken link, and for each request that a page would send to another host.
    """
    broken = []
    for page in sorted(site.rglob("*.html")):
        for tag, target in _REFERENCE.findall(page.read_text(encoding="utf-8")):
            if problem := _problem(page, tag, unescape(target)):
                broken.append(f"{page.relative_to(site)}: {problem}")
    sheets = (sheet for sheet in site.rglob("*.css") if _LOADED.search(sheet.read_text(encoding="utf-8")))
    return broken + [f"{sheet.relative_to(site)}: loads from another host" for sheet in sheets]


def _problem(page: Path, tag: str, target: str) -> str:
    """Return what is wrong with a link of a page; nothing if it is right."""
    if re.match(r"(https?:)?//", target):
        return "" if tag == "a" else f"<{tag}> loads {target}"
    if re.match(r"[a-z]+:", target):
        return ""
    path, _, anchor = target.partition("#")
    there = (page.parent / unquote(path.partition("?")[0])).resolve() if path else page.resolve()
    if there.is_dir():
        there /= "index.html"
    if not there.exists():
        return f"no file {target}"
    return f"no anchor {target}" if anchor and unquote(anchor) not in _anchors(there) else ""


@cache
def _anchors(page: Path) -> frozenset[str]:
    return frozenset(re.findall(r'\sid="([^"]+)"', page.read_text(encoding="utf-8")))
