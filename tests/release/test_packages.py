"""The checks of built packages: complete ones pass, and each thing that is left out or put in by mistake is named."""

import io
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
from release.sources import version

from release import packages

ROOT = Path(__file__).parents[2]
NAME = f"qkv-{version(ROOT)}"
METADATA = b"Metadata-Version: 2.4\nName: qkv\n\n[docs](https://qkv.org/docs)\n"
TRACKED = subprocess.run(
    ["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=True
).stdout.split()
LIBRARY = "qkv/compiled/libraries/x86-64-v3.so"


def source_distribution(folder: Path, without: str = "", extra: str = "", metadata: bytes = METADATA) -> Path:
    path = folder / f"{NAME}.tar.gz"
    names = [
        name for name in TRACKED if name.split("/")[0] not in ("tests", "results", "benchmarks") and name != without
    ]
    with tarfile.open(path, "w:gz") as archive:
        for name, data in {**dict.fromkeys([*names, *filter(None, [extra])], b""), "PKG-INFO": metadata}.items():
            entry = tarfile.TarInfo(f"{NAME}/{name}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return path


def wheel(folder: Path, without: str = "", extra: str = "") -> Path:
    path = folder / f"{NAME}-py3-none-manylinux_2_17_x86_64.whl"
    names = {name.removeprefix("src/") for name in TRACKED if name.startswith("src/qkv/")} | {LIBRARY}
    with zipfile.ZipFile(path, "w") as archive:
        for name in sorted((names | set(filter(None, [extra]))) - {without}):
            archive.writestr(name, b"")
        archive.writestr(f"{NAME}.dist-info/METADATA", METADATA)
    return path


def test_complete_packages_pass(tmp_path: Path) -> None:
    source_distribution(tmp_path)
    wheel(tmp_path)
    assert packages.missing(ROOT, tmp_path) == []
    assert [line.split()[1] for line in packages.sums(tmp_path)] == sorted(path.name for path in tmp_path.iterdir())


def test_a_folder_without_packages_is_named(tmp_path: Path) -> None:
    assert len(packages.missing(ROOT, tmp_path)) == 2


@pytest.mark.parametrize(
    "left_out", ["SECURITY.md", "docs/project/results.md", "src/qkv/functional.py", "src/qkv/py.typed"]
)
def test_what_a_source_distribution_lacks_is_named(left_out: str, tmp_path: Path) -> None:
    problems = list(packages.source_distribution(ROOT, source_distribution(tmp_path, without=left_out)))
    assert problems
    assert all(left_out in problem for problem in problems)


@pytest.mark.parametrize("stray", ["tests/test_functional.py", "src/qkv/__pycache__/a.pyc"])
def test_a_stray_file_is_named(stray: str, tmp_path: Path) -> None:
    (problem,) = packages.source_distribution(ROOT, source_distribution(tmp_path, extra=stray))
    assert stray in problem


def test_a_relative_link_in_the_description_is_named(tmp_path: Path) -> None:
    path = source_distribution(tmp_path, metadata=METADATA + b"[b](docs/b.md)")
    (problem,) = packages.source_distribution(ROOT, path)
    assert "docs/b.md" in problem


@pytest.mark.parametrize(
    "left_out", ["qkv/functional.py", "qkv/py.typed", "qkv/tasks/example/model.safetensors", LIBRARY]
)
def test_what_a_wheel_lacks_is_named(left_out: str, tmp_path: Path) -> None:
    assert len(list(packages.wheel(ROOT, wheel(tmp_path, without=left_out)))) == 1


@pytest.mark.parametrize("stray", ["tests/a.py", "release/links.py"])
def test_what_does_not_belong_in_a_wheel_is_named(stray: str, tmp_path: Path) -> None:
    assert any(stray in problem for problem in packages.wheel(ROOT, wheel(tmp_path, extra=stray)))
