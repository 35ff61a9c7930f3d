"""What a release needs of the repository's files: each check returns one line for each thing that is missing."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from release.links import CONTACT, REPOSITORY, is_placeholder

_HEADING = re.compile(r"^## \[([^\]]+)\] - (.*)$", re.MULTILINE)
_RUN = re.compile(r"^\s*(?:- )?run:\s*(.*)$", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s#:]+)(?:#[^)\s]*)?\)")


def version(root: Path) -> str:
    """Return the version of the package."""
    text = (root / "src" / "qkv" / "_version.py").read_text(encoding="utf-8")
    number: str = re.findall(r'^VERSION = "(.*)"$', text, re.MULTILINE)[0]
    return number


def missing(root: Path) -> list[str]:
    """Return what a release lacks before anything is built.

    Args:
        root: the top of a checkout.

    Returns:
        One line for each problem; none if it can be built.
    """
    checks = (addresses(), numbers(root), links(root), workflows(root), checkout(root))
    return [problem for check in checks for problem in check]


def addresses(repository: str = REPOSITORY, contact: str = CONTACT) -> Iterator[str]:
    """Find addresses that are placeholders."""
    for name, address in (("REPOSITORY", repository), ("CONTACT", contact)):
        if is_placeholder(address):
            yield f"release/links.py: {name} is a placeholder, {address}"


def numbers(root: Path) -> Iterator[str]:
    """Compare the version with the changelog, which must date it, and with the citation."""
    number = version(root)
    if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", number):
        yield f"src/qkv/_version.py: {number} is no version of three numbers"
    heading = _HEADING.search((root / "CHANGELOG.md").read_text(encoding="utf-8"))
    if heading is None or heading[1] != number:
        yield f"CHANGELOG.md: the first section is {heading[1] if heading else 'missing'}, expected {number}"
    elif not re.fullmatch(r"\d{4}-\d\d-\d\d", heading[2]):
        yield f'CHANGELOG.md: {number} has the date "{heading[2]}", expected year-month-day'
    cited = re.findall(r"^version: *(.*)$", (root / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    if cited != [number]:
        yield f"CITATION.cff: version {', '.join(cited)}, expected {number}"


def linked_files(text: str) -> list[str]:
    """Return the paths of the repository that a page at its top leads to.

    Example:
        >>> linked_files("[a](docs/a.md#b) ![c](c.png) [d](https://d.org) [e](#e)")
        ['docs/a.md', 'c.png']
    """
    return list(dict.fromkeys(_LINK.findall(text)))


def links(root: Path) -> Iterator[str]:
    """Find links of the top pages that lead nowhere."""
    for page in sorted(root.glob("*.md")):
        for path in linked_files(page.read_text(encoding="utf-8")):
            if not (root / path).exists():
                yield f"{page.name}: no file {path}"


def workflows(root: Path) -> Iterator[str]:
    """Find steps of hosted CI that are not a target of the Makefile."""
    targets = re.findall(r"^([\w-]+):", (root / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for file in sorted((root / ".github" / "workflows").glob("*.yml")):
        for command in _RUN.findall(file.read_text(encoding="utf-8")):
            words = command.split()
            if words[0] == "shell:":  # what runs all commands
                continue
            if len(words) != 2 or words[0] != "make" or words[1] not in targets:
                yield f"{file.relative_to(root).as_posix()}: `{command}` is no target of the Makefile"


def checkout(root: Path) -> Iterator[str]:
    """Find changes that are not committed, and a tag that exists."""
    if _git(root, "status", "--porcelain"):
        yield "git: there are changes that are not committed"
    tag = f"v{version(root)}"
    tagged = _git(root, "tag", "--list", tag) and _git(root, "rev-parse", f"{tag}^{{commit}}")
    if tagged not in ("", _git(root, "rev-parse", "HEAD")):
        yield f"git: the tag {tag} names another commit"


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(root), *words], capture_output=True, check=True, text=True).stdout.strip()


def notes(root: Path) -> str:
    """Return the section of the changelog about this version, with its heading."""
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    start = text.index(f"## [{version(root)}]")
    end = text.find("\n## [", start + 1)
    return text[start : end if end > 0 else None].strip()
