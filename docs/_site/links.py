"""Check a built site: every link and picture leads to a file and an anchor, and no page loads from another host."""

import re
from html import unescape
from pathlib import Path
from urllib.parse import unquote

_REFERENCE = re.compile(r"""<(\w+)\b[^>]*?\s(href|src)="([^"]*)\"""")
_LOADED = re.compile(r"url\((?:'|\")?(https?:)?//")


def check(site: Path) -> list[str]:
    """Return what is broken.

    Args:
        site: the folder of a site.

    Returns:
        One line for each broken link, and for each request that a page would send to another host.
    """
    broken = []
    anchors: dict[Path, set[str]] = {}
    for page in sorted(site.rglob("*.html")):
        text = page.read_text(encoding="utf-8")
        name = page.relative_to(site)
        for tag, _, target in _REFERENCE.findall(text):
            target = unescape(target)
            if re.match(r"(https?:)?//", target):
                if tag not in ("a",) and not (tag == "link" and 'rel="canonical"' in text):
                    broken.append(f"{name}: <{tag}> loads {target}")
                continue
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            there = (page.parent / unquote(path.partition("?")[0])).resolve() if path else page.resolve()
            if there.is_dir():
                there /= "index.html"
            if not there.exists():
                broken.append(f"{name}: no file {target}")
            elif anchor and there.suffix == ".html":
                if there not in anchors:
                    anchors[there] = set(re.findall(r'\sid="([^"]+)"', there.read_text(encoding="utf-8")))
                if unquote(anchor) not in anchors[there]:
                    broken.append(f"{name}: no anchor {target}")
    for sheet in site.rglob("*.css"):
        if _LOADED.search(sheet.read_text(encoding="utf-8")):
            broken.append(f"{sheet.relative_to(site)}: loads from another host")
    return broken
