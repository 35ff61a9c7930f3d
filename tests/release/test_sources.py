"""The checks before a release: the repository passes them, and each thing that is spoiled is named."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from release.links import absolute_links, file_address, is_placeholder, urls

from release import sources

ROOT = Path(__file__).parents[2]
ADDRESS = "https://github.com/someone/qkv"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A checkout with one commit that holds what the checks read."""
    root = tmp_path / "checkout"
    for name in (
        *(path.name for path in ROOT.glob("*.md")),
        "CITATION.cff",
        "LICENSE",
        "Makefile",
        "src/qkv/_version.py",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    for folder in ("docs", "examples", ".github"):
        shutil.copytree(ROOT / folder, root / folder)
    for page in root.glob("*.md"):  # what else the pages lead to
        for path in sources.linked_files(page.read_text(encoding="utf-8")):
            if (ROOT / path).is_file() and not (root / path).exists():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / path, root / path)
    replace(root, "CHANGELOG.md", r"(?m)^(## \[[\d.]+\]) - .*$", r"\1 - 2026-12-01")
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "All"]):
        git(root, *words)
    return root


def git(root: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@b.c", *words], check=True)


def replace(root: Path, name: str, old: str, new: str) -> None:
    text, count = re.subn(old, new, (root / name).read_text(encoding="utf-8"), count=1)
    assert count == 1
    (root / name).write_text(text, encoding="utf-8")


def test_the_repository_lacks_only_what_its_owner_decides() -> None:
    problems = [problem for check in (sources.numbers, sources.links, sources.workflows) for problem in check(ROOT)]
    assert [problem for problem in problems if "has the date" not in problem] == []


def test_a_complete_checkout_lacks_nothing(copy: Path) -> None:
    assert list(sources.addresses(ADDRESS, "someone@qkv.org")) == []
    for check in (sources.numbers, sources.links, sources.workflows, sources.checkout):
        assert list(check(copy)) == []


def test_placeholders_are_refused() -> None:
    assert len(list(sources.addresses("https://repository.invalid/qkv", "a@b.invalid"))) == 2
    assert is_placeholder("https://")


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("CHANGELOG.md", r"## \[[\d.]+\] - .*", "## [0.1.0] - Unreleased", "Unreleased"),
        ("CHANGELOG.md", r"## \[[\d.]+\]", "## [9.9.9]", "9.9.9"),
        ("CITATION.cff", r"(?m)^version: .*$", "version: 9.9.9", "9.9.9"),
        ("src/qkv/_version.py", r'VERSION = ".*"', 'VERSION = "9.9.9.dev1"', "9.9.9.dev1"),
        ("README.md", r"\]\(SECURITY.md", "](NOWHERE.md", "NOWHERE.md"),
        (".github/workflows/ci.yml", r"run: make check", "run: make checks", "make checks"),
        (".github/workflows/ci.yml", r"run: make check", "run: pytest", "pytest"),
    ],
)
def test_what_is_spoiled_is_named(copy: Path, name: str, old: str, new: str, said: str) -> None:
    replace(copy, name, old, new)
    checks = (sources.numbers, sources.links, sources.workflows)
    problems = [problem for check in checks for problem in check(copy)]
    assert any(said in problem for problem in problems)
    assert list(sources.checkout(copy)) == ["git: there are changes that are not committed"]


def test_a_tag_of_another_commit_is_named(copy: Path) -> None:
    git(copy, "tag", f"v{sources.version(copy)}")
    assert list(sources.checkout(copy)) == []
    git(copy, "commit", "-q", "--allow-empty", "-m", "More")
    assert len(list(sources.checkout(copy))) == 1


def test_every_link_of_the_readme_works_on_an_index_page() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    page = absolute_links(text, "v0.1.0", ADDRESS)
    assert sources.linked_files(page) == []
    for path in sources.linked_files(text):
        assert f"{ADDRESS}/blob/v0.1.0/{path}" in page or ("![" in text and f"{ADDRESS}/raw/v0.1.0/{path}" in page)
    outside = re.sub(r"\]\([^)]*\)", "](…)", text), re.sub(r"\]\([^)]*\)", "](…)", page)
    assert outside[0] == outside[1], "nothing but links has changed"


def test_pictures_are_shown_and_files_are_opened() -> None:
    page = absolute_links("![a](docs/a.png) [b](docs/b.md)", "main", ADDRESS)
    assert page == f"![a]({ADDRESS}/raw/main/docs/a.png) [b]({ADDRESS}/blob/main/docs/b.md)"


def test_the_addresses_of_the_index_page_are_in_one_place() -> None:
    assert all(address.startswith(ADDRESS) for address in urls("0.1.0", ADDRESS).values())
    assert file_address("a", "b", ADDRESS) == f"{ADDRESS}/blob/b/a"
    lines = subprocess.run(
        ["git", "-C", str(ROOT), "grep", "-l", "repository.invalid"], capture_output=True, text=True, check=True
    ).stdout.split()
    assert set(lines) <= {"release/links.py", "tests/release/test_sources.py"}
    assert urls("0.1.0", "https://repository.invalid/qkv") == {}, "nobody is shown an address that leads nowhere"


def test_the_notes_of_a_version_end_where_the_next_begins(copy: Path) -> None:
    section = "## [9.9.9] - 2027-01-01\n\nNew.\n\n## [0.1.0] - 2026-12-01\n\nOld.\n"
    (copy / "CHANGELOG.md").write_text(f"# Changelog\n\n{section}", encoding="utf-8")
    replace(copy, "src/qkv/_version.py", r'VERSION = ".*"', 'VERSION = "9.9.9"')
    assert sources.notes(copy) == "## [9.9.9] - 2027-01-01\n\nNew."
