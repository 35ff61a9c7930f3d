"""What the site needs beyond Sphinx: links into the repository, and docstrings written for people."""

import re
from pathlib import PurePosixPath
from typing import Any

from release.links import REPOSITORY, file_address, is_placeholder

_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")
_SOURCES = re.compile(r"(\.ci|src|tests|examples|benchmarks|results)(/|$)")
_PAGES = {
    "CHANGELOG.md": "project/changelog",
    "CONTRIBUTING.md": "project/contributing",
    "SECURITY.md": "project/security",
}


def repository_links(text: str, page: str, repository: str = REPOSITORY) -> str:
    """Lead links to files of the repository to the repository, and those to its top pages to their pages here.

    Args:
        text: a page's Markdown.
        page: its path below `docs`, which links are relative to.
        repository: the address of the repository. While it is a placeholder, links to it are plain words.

    Returns:
        The Markdown for the site.

    Example:
        >>> repository_links("[a](../../src/qkv/errors.py)", "how_to/train.md", "https://qkv.org")
        '[a](https://qkv.org/blob/main/src/qkv/errors.py)'
        >>> repository_links("[a](../../SECURITY.md#keys)", "how_to/train.md")
        '[a](../project/security.md#keys)'
    """
    folder = PurePosixPath("docs", page).parent

    def replaced(link: re.Match[str]) -> str:
        label, target = link.groups()
        if re.match(r"[a-z]+:|#", target):
            return link.group(0)
        path, _, anchor = target.partition("#")
        full = _normal(folder / path)
        ending = f"#{anchor}" if anchor else ""
        if full in _PAGES:
            up = "../" * (len(folder.parts) - 1)
            return f"[{label}]({up}{_PAGES[full]}.md{ending})"
        if _SOURCES.match(full) or not full.startswith("docs"):
            return (
                label if is_placeholder(repository) else f"[{label}]({file_address(full, 'main', repository)}{ending})"
            )
        return link.group(0)

    return _LINK.sub(replaced, text)


def _normal(path: PurePosixPath) -> str:
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


def _rewrite_links(app: Any, page: str, source: list[str]) -> None:
    source[0] = repository_links(source[0], f"{page}.md")


def _plain_docstring(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    lines[:] = plain_docstring(lines)


def plain_docstring(lines: list[str]) -> list[str]:
    """Write a docstring for people as reStructuredText: a bar is an absolute value, a star a product or a file pattern.

    Args:
        lines: the docstring; an example, from `>>>` to the next empty line, stays as it is.

    Returns:
        The lines, without markup by accident.

    Example:
        >>> plain_docstring(["|q| * k, at FILE:LINE, `a*b`", ">>> 2 * 3", "6 * 1"])
        ['\\\\|q\\\\| \\\\* k, at FILE\\\\:LINE, ``a*b``', '>>> 2 * 3', '6 * 1']
        >>> plain_docstring(["Args:", "    key, mask, bias: as `attention`.", "", "Source: one,", "    two."])
        ['``key``, ``mask``, ``bias``: as ``attention``.', '', '', 'Source: one, two.']
    """
    plain, example = [], False
    for line in _with_shared_arguments(_with_sources_on_one_line(lines)):
        example = line.lstrip().startswith(">>>") or (example and bool(line.strip()))
        parts = re.split(r"(`+[^`]*`+)", line)
        if not example:
            parts[::2] = [re.sub(r"(?<!\\)([|*]|(?<=\w):(?=\w))", r"\\\1", part) for part in parts[::2]]
            parts[1::2] = [re.sub(r"^`([^`]+)`$", r"``\1``", part) for part in parts[1::2]]
        plain.append("".join(parts))
    return plain


def _with_sources_on_one_line(lines: list[str]) -> list[str]:
    """Join the lines of "Source: ...", of which the later ones are indented."""
    joined: list[str] = []
    source = False
    for line in lines:
        source = line.startswith(("Source: ", "Sources: ")) or (source and line.startswith(" "))
        if source and line.startswith(" "):
            joined[-1] += f" {line.strip()}"
        else:
            joined.append(line)
    return joined


_SHARED = re.compile(r"\s+(\w+(?:, \w+){2,}): (as (?:for )?`[\w.]+`)\.")


def _with_shared_arguments(lines: list[str]) -> list[str]:
    """Say in one sentence which arguments are those of another function, in place of a line for each."""
    for at, line in enumerate(lines):
        if shared := _SHARED.fullmatch(line):
            heading = lines.index("Args:")
            rest = lines[heading + 1 : at] + lines[at + 1 :]
            arguments = ["Args:", *rest] if rest and rest[0].strip() else rest
            names = ", ".join(f"`{name}`" for name in shared[1].split(", "))
            return [*lines[:heading], f"{names}: {shared[2]}.", "", *arguments]
    return lines


def _skip_foreign(app: Any, what: str, name: str, value: Any, skipped: bool, options: Any) -> bool | None:
    module = getattr(value, "__module__", None) or ""
    return True if module.startswith(("sklearn", "torch")) or name.endswith("_request") else None


def setup(app: Any) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("source-read", _rewrite_links)
    app.connect("autodoc-process-docstring", _plain_docstring, priority=100)
    app.connect("autodoc-skip-member", _skip_foreign)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
