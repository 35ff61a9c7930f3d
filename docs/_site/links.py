"""Check a built site: links lead to a file and an anchor, pictures have a text, nothing loads from outside."""

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
        One line for each broken link, for each picture without a text for those who do not see it, and for each
        request that a page would send to another host.
    """
    broken = []
    for page in sorted(site.rglob("*.html")):
        text = page.read_text(encoding="utf-8")
        for tag, target in _REFERENCE.findall(text):
            if problem := _problem(page, tag, unescape(target)):
                broken.append(f"{page.relative_to(site)}: {problem}")
        broken += [f"{page.relative_to(site)}: no text for {picture[:80]}" for picture in _silent(text)]
    sheets = (sheet for sheet in site.rglob("*.css") if _LOADED.search(sheet.read_text(encoding="utf-8")))
    return broken + [f"{sheet.relative_to(site)}: loads from another host" for sheet in sheets]


def _silent(text: str) -> list[str]:
    """Return the pictures of a page that have no text, or the name of their file in its place."""
    pictures = re.findall(r"<img\b[^>]*>", text)
    return [picture for picture in pictures if not re.search(r'\salt="(?!\.\.?/|_images/)[^"]', picture)]


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
