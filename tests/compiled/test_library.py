"""Libraries of machine code: current, or refused; equal sources give equal bytes; what has not changed is kept."""

import importlib
import importlib.metadata
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from tests.compiled.every_kernel import kernels
from tests.compiled.small_kernel import BUILT, double

from qkv.compiled import build, library
from qkv.compiled.library import Library
from qkv.compiled.target import BUILD_VARIABLE, CHOICE, TARGETS, Target, named
from qkv.errors import CompilationError, ConfigError

if CHOICE.target is None:
    pytest.skip("no compiled kernels here", allow_module_level=True)
TARGET = CHOICE.target
SMALL = BUILT / f"{TARGET.name}.so"
TEXT = """
from qkv.compiled.kernels import kernel

@kernel("void(F[::1])")
def scale(x):
    for i in range(x.size):
        x[i] *= 2

@kernel("void(F[::1])", single=True)
def shift(x):
    for i in range(x.size):
        x[i] += 1
"""


def test_the_package_holds_machine_code_of_every_kernel() -> None:
    assert library.why_unavailable() is None
    package = next(each for each in library._libraries if each.path.parent == library.FOLDER)
    assert package.manifest["target"] == TARGET.name
    for name, kernel in kernels():
        for dtype in kernel.dtypes:
            assert kernel.symbol(dtype) in package, name
            assert (kernel.symbol(dtype, team=True) in package) is (kernel.scratch is not None), name


def test_a_library_that_is_older_than_its_source_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def edit(name: str, text: bytes) -> None:
        def read(path: Path, limit: int) -> bytes:
            return path.read_bytes() + text if path.name == name else path.read_bytes()

        monkeypatch.setattr(library, "read_file", read)

    edit("exp.py", b"X = 1\n")
    Library(SMALL)  # no kernel of this library imports that file
    edit("target.py", b"\n# A comment.\n")
    Library(SMALL)
    edit("target.py", b"X = 1\n")
    with pytest.raises(CompilationError, match=r"compiled from .*target\.py; .*python -m qkv\.compiled\.build"):
        Library(SMALL)


def test_a_stale_library_ends_every_call_that_would_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is neither used nor silently left out."""
    monkeypatch.setattr(library, "read_file", lambda path, limit: b"")
    library.why_unavailable.cache_clear()
    try:
        with pytest.raises(CompilationError):
            library.why_unavailable()
        with pytest.raises(CompilationError):
            library.function(double.symbol(np.float32), "double")
    finally:
        library.why_unavailable.cache_clear()


def test_an_installation_without_source_is_current(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(library, "PACKAGE", tmp_path)
    Library(SMALL)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """A module of two small kernels, of this test alone."""
    name = f"made_for_{request.node.name.partition('[')[0]}"
    (tmp_path / f"{name}.py").write_text(TEXT)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module(name)
    del sys.modules[name]


def made(module: ModuleType, name: str, target: Target = TARGET, objects: str = "objects") -> tuple[Path, bool]:
    """Build a module's library."""
    folder = Path(str(module.__file__)).parent
    path = folder / f"{name}.so"
    return path, build.build(target, path, [module.__name__], folder / objects, processes=1)


def edited(module: ModuleType, old: str, new: str) -> ModuleType:
    path = Path(str(module.__file__))
    path.write_text(path.read_text().replace(old, new))
    importlib.invalidate_caches()
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    try:
        del sys.modules[module.__name__]
        return importlib.import_module(module.__name__)
    finally:
        sys.dont_write_bytecode = before


def scaled(path: Path, module: ModuleType) -> float:
    x = np.ones(3)
    Library(path).function(module.scale.symbol(x.dtype), "scale")(x)
    return float(x[0])


def test_a_library_is_built_once_and_again_after_an_edit(module: ModuleType) -> None:
    first, built = made(module, "first")
    assert built
    assert scaled(first, module) == 2.0
    assert not made(module, "first")[1]
    kept = set(first.parent.glob("objects/*/*.o"))
    again = edited(module, "*= 2", "*= 3000")
    second, built = made(again, "second")
    assert built
    assert scaled(second, again) == 3000.0
    assert len(set(second.parent.glob("objects/*/*.o"))) == len(kept) == 3
    assert made(again, "first") == (first, True)


def test_equal_sources_give_equal_bytes(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is set for Numba here, and whichever process compiles what."""
    first, _ = made(module, "first")
    monkeypatch.setenv("NUMBA_OPT", "1")
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    second, built = made(module, "second", objects="others")
    assert built
    assert first.read_bytes() == second.read_bytes()


def test_what_is_no_kernel_is_named_by_the_process_that_compiles_it(module: ModuleType) -> None:
    wrong = edited(module, "x[i] += 1", "x.no_such_attribute")
    with pytest.raises(Exception, match="no_such_attribute") as failure:
        made(wrong, "wrong")
    assert failure.value.__notes__[-1] == f"{wrong.__name__}.shift, float32"
    assert not list(Path(str(wrong.__file__)).parent.glob("*.so"))


def test_without_a_linker_or_a_compiler_the_error_says_what_to_install(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CompilationError, match=r"kernels: expected a linker for .*pip install ziglang"):
        made(module, "unlinked")

    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(build.importlib.metadata, "version", absent)
    build._versions.cache_clear()
    with pytest.raises(CompilationError, match=r"kernels: expected Numba to compile them; .*qkv\[build\]"):
        made(module, "uncompiled")
    build._versions.cache_clear()


def test_the_settings_of_a_build_end_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_OPT", "1")
    before = dict(build.os.environ)
    with build._Environment(TARGET):
        assert build.os.environ[BUILD_VARIABLE] == TARGET.name
        assert [name for name in build.os.environ if name.startswith("NUMBA_")] == ["NUMBA_DISABLE_INTEL_SVML"]
    assert dict(build.os.environ) == before


def test_targets_by_name_of_this_processor_and_of_its_kind() -> None:
    assert build.targets(["aarch64", "x86-64-v3"]) == [named("aarch64"), named("x86-64-v3")]
    assert build.targets(["all"]) == [each for each in TARGETS if each.machine == TARGET.machine]
    assert TARGET in build.targets(["all"])
    with pytest.raises(ConfigError, match=r'target: expected .*Did you mean "x86-64-v3"'):
        build.targets(["x86-64-v33"])
