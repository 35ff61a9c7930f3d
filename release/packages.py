"""What must be in the source distribution and in the wheel, and what must not."""

import email
import hashlib
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from release.sources import linked_files, version

DATA = (
    "qkv/py.typed",
    "qkv/view/static/",
    "qkv/planner/coefficients/",
    "qkv/course/engel.csv",
    "qkv/course/war_and_peace.txt",
    "qkv/tasks/example/model.safetensors",
)
"""Files, and folders that hold files, of a wheel besides its modules."""


def missing(root: Path, dist: Path) -> list[str]:
    """Return what is wrong with the packages of a folder.

    Args:
        root: the top of the checkout that they were built from.
        dist: the folder: one source distribution, and one wheel or several.

    Returns:
        One line for each problem.
    """
    name = f"qkv-{version(root)}"
    sources, wheels = sorted(dist.glob("*.tar.gz")), sorted(dist.glob("*.whl"))
    problems = []
    if [path.name for path in sources] != [f"{name}.tar.gz"]:
        problems.append(f"dist: expected {name}.tar.gz, got {[path.name for path in sources]}")
    if not wheels:
        problems.append("dist: no wheel")
    for path in sources:
        problems += [f"{path.name}: {problem}" for problem in source_distribution(root, path)]
    for path in wheels:
        problems += [f"{path.name}: {problem}" for problem in wheel(root, path)]
    return problems


def source_distribution(root: Path, path: Path) -> Iterator[str]:
    """Compare with the README, whose links must work in it, and with the package."""
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        yield from _description(_read(archive, f"{path.name.removesuffix('.tar.gz')}/PKG-INFO"))
    for page in ("README.md", "CONTRIBUTING.md", "SECURITY.md"):
        for linked in linked_files((root / page).read_text(encoding="utf-8")):
            if linked.rstrip("/") not in names:
                yield f"{page} leads to {linked}, which is not in it"
    tracked = subprocess.run(
        ["git", "-C", str(root), "ls-files", "src"], capture_output=True, check=True, text=True
    ).stdout.split()
    yield from (f"{file} is not in it" for file in tracked if file not in names)
    yield from _stray(names)


def _read(archive: tarfile.TarFile, name: str) -> str:
    file = archive.extractfile(name)
    return file.read().decode("utf-8") if file else ""


def wheel(root: Path, path: Path) -> Iterator[str]:
    """Compare with the modules of the checkout, and look for the data and the kernels."""
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        yield from _description(archive.read(metadata).decode("utf-8"))
    for file in (root / "src" / "qkv").rglob("*.py"):
        if (module := file.relative_to(root / "src").as_posix()) not in names:
            yield f"{module} is not in it"
    for data in DATA:
        if not any(name.startswith(data) for name in names):
            yield f"{data} is not in it"
    if "linux" in path.name and not any(name.startswith("qkv/compiled/libraries/") for name in names):
        yield "it has no compiled kernels"
    yield from _stray(names)
    yield from (f"{name} lies outside the package" for name in names if name.split("/")[0].split("-")[0] != "qkv")


def _stray(names: set[str]) -> Iterator[str]:
    for name in sorted(names):
        parts = name.split("/")
        if parts[0] == "tests" or "__pycache__" in parts or parts[-1].startswith("test_"):
            yield f"{name} does not belong in it"


def _description(metadata: str) -> Iterator[str]:
    """The README as an index shows it has links that lead somewhere without the repository."""
    message = email.message_from_string(metadata)
    text = str(message.get_payload())
    if not text.strip():
        yield "it has no description"
    yield from (f"its description has the relative link {link}" for link in linked_files(text))


def rated(dist: Path) -> list[str]:
    """Ask the tools that indexes and packagers use.

    Returns:
        What `twine check` and `pyroma` find.
    """
    files = [str(path) for path in sorted(dist.iterdir()) if path.suffix in (".gz", ".whl")]
    problems = []
    checked = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *files], capture_output=True, text=True, check=False
    )
    if checked.returncode:
        problems.append(f"twine: {checked.stdout.strip()}")
    for path in dist.glob("*.tar.gz"):
        rating = subprocess.run(
            [sys.executable, "-m", "pyroma", "--min=10", str(path)], capture_output=True, text=True, check=False
        )
        if rating.returncode:
            problems.append(f"pyroma: {' '.join((rating.stdout + rating.stderr).split())}")
    return problems


def sums(dist: Path) -> list[str]:
    """Return the sha256 and the name of each package."""
    files = sorted(path for path in dist.iterdir() if path.suffix in (".gz", ".whl"))
    return [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in files]
