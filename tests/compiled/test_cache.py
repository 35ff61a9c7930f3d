"""Machine code on disk: right for the sources at hand, whatever state the files are in, and in nobody else's reach."""

import json
import os
import shutil
import stat
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.compiled import small_kernel
from tests.compiled.every_kernel import functions

from qkv.compiled import cache, compiler, kernels, target
from qkv.compiled.cache import KernelCacheWarning
from qkv.compiled.sources import PACKAGE, Sources
from qkv.errors import UnsupportedError

SIGNATURE = "void(i8, i8, f4[::1])"
EVERY = functions()


class Outcome(NamedTuple):
    """A function, and whether it came from disk."""

    code: Any
    loaded: bool


def compiled(function: Any = small_kernel.double.py_func, signature: str = SIGNATURE) -> Outcome:
    calls: list[Any] = []
    compile_object = compiler.compile_object
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(compiler, "compile_object", lambda *given: calls.append(given) or compile_object(*given))
        return Outcome(kernels.compile_cached(function, signature), not calls)


def hits(outcome: Outcome) -> int:
    """1 if a function came from disk, else 0, after a look at what it computes."""
    x = np.arange(3, dtype=np.float32)
    outcome.code(0, 3, x)
    assert x.tolist() == [0, 2, 4]
    return int(outcome.loaded)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of machine code for this test alone."""
    _choose(monkeypatch, tmp_path / "kept")
    return tmp_path / "kept"


def _choose(monkeypatch: pytest.MonkeyPatch, folder: Path | str) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder))


def files(folder: Path) -> list[Path]:
    """The files of machine code in a folder, and whatever else was left there."""
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.fixture
def _warns_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    cache._warned.clear()
    yield
    cache._warned.clear()


# What the key covers


def stamped(function: Any, read: Any = Path.read_bytes) -> str:
    return cache.stamp(function, kernels.OPTIONS, Sources(read=read))


@pytest.mark.parametrize("name", EVERY)
def test_the_key_changes_with_each_file_that_a_kernel_is_made_of(name: str) -> None:
    function = EVERY[name]
    before = stamped(function)
    files = Sources().files(cache._paths(function))
    assert Path(function.__code__.co_filename) in files
    assert PACKAGE / "compiled" / "kernels.py" in files
    for edited in files:

        def read(path: Path, edited: Path = edited) -> bytes:
            return path.read_bytes() + (b"\n" if path == edited else b"")

        assert stamped(function, read) != before, edited
    assert stamped(function) == before


def test_files_that_a_kernel_is_not_made_of_leave_its_key(tmp_path: Path) -> None:
    read: list[Path] = []

    def recorded(path: Path) -> bytes:
        read.append(path)
        return path.read_bytes()

    function = EVERY["layout_kernel.lay_out"]
    stamped(function, recorded)
    assert sorted(read) == Sources().files(cache._paths(function))
    assert PACKAGE / "compiled" / "thread_pool.py" not in read
    assert PACKAGE / "algorithms" / "additive" / "factored.py" not in read


def test_a_function_made_by_another_is_keyed_by_what_it_closes_over() -> None:
    """Files of functions among them; numbers, and the text of functions, by what they are."""
    files = {path.name for path in Sources().files(cache._paths(EVERY["openmp.launch"]))}
    assert {"openmp.py", "parallel_region.py", "small_kernel.py"} <= files

    def scaled(number: int) -> Any:
        def scale(x):
            return number * x

        return scale

    def added(number: int) -> Any:
        return lambda x: number + x

    made = [scaled(1), scaled(2), added(1), kernels.helper(scaled(3)).py_func]
    assert len({stamped(function) for function in made}) == len(made)
    assert stamped(scaled(1)) == stamped(scaled(1))
    one, other = lambda x: x + 1, lambda x: x + 2
    assert stamped(one) != stamped(other)


def test_options_and_the_version_of_numpy_are_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    function = small_kernel.double.py_func
    plain, fast = ({"fastmath": kinds} for kinds in ({"nsz"}, {"nsz", "contract"}))
    before = cache.stamp(function, plain, Sources())
    assert cache.stamp(function, fast, Sources()) != before
    monkeypatch.setattr(np, "__version__", np.__version__ + "1")
    assert cache.stamp(function, plain, Sources()) != before


@pytest.mark.parametrize("field", target.Target._fields)
def test_the_target_is_in_the_key(kept: Path, monkeypatch: pytest.MonkeyPatch, field: str) -> None:
    assert hits(compiled()) == 0
    other = target.current()._replace(**{field: "another"})
    with monkeypatch.context() as patched:
        patched.setattr(cache, "current", lambda: other)
        assert hits(compiled()) == 0
        assert hits(compiled()) == 1
    assert hits(compiled()) == 1
    assert len(files(kept)) == 2


def test_another_version_of_numba_compiles_again_and_none_takes_what_is_there(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hits(compiled()) == 0
    monkeypatch.setattr(cache, "numba_version", lambda: None)
    assert hits(compiled()) == 1
    monkeypatch.setattr(cache, "numba_version", lambda: "another")
    assert hits(compiled()) == 0
    assert hits(compiled()) == 1
    assert len(files(kept)) == 1


def test_the_stamp_is_the_same_in_every_process() -> None:
    program = textwrap.dedent(
        """
        import json
        from tests.compiled.test_cache import EVERY, stamped
        print(json.dumps({name: stamped(function) for name, function in EVERY.items()}))
        """
    )
    root = Path(__file__).parents[2]
    path = os.pathsep.join(map(str, (PACKAGE.parent, root)))
    # Sets of strings have another order there.
    settings = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {name: stamped(function) for name, function in EVERY.items()}


@pytest.mark.parametrize(
    ("name", "loaded"), [("NUMBA_OPT", 0), ("NUMBA_UNKNOWN_YET", 0), ("NUMBA_NUM_THREADS", 1), ("NUMB", 1)]
)
def test_settings_of_numba_have_files_of_their_own(
    kept: Path, monkeypatch: pytest.MonkeyPatch, name: str, loaded: int
) -> None:
    assert hits(compiled()) == 0
    monkeypatch.setenv(name, "1")
    assert hits(compiled()) == loaded
    monkeypatch.delenv(name)
    assert hits(compiled()) == 1


def test_signatures_and_functions_have_files_of_their_own(kept: Path) -> None:
    assert hits(compiled()) == 0
    assert hits(compiled(signature="void(u8, u8, f4[::1])")) == 0
    compiled(small_kernel.add_each.py_func, "void(i8, i8, f4[:,::1], f4[::1], f4[:,::1])")
    assert len(files(kept)) == 3
    assert hits(compiled()) == 1
    assert len(files(kept)) == 3


def test_code_with_another_stamp_is_replaced(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file for each signature and processor, however often the source changes."""
    assert hits(compiled()) == 0
    with monkeypatch.context() as patched:
        patched.setattr(np, "__version__", "another")
        assert hits(compiled()) == 0
        assert hits(compiled()) == 1
    assert hits(compiled()) == 0
    assert len(files(kept)) == 1


def test_code_of_another_header_is_not_believed(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old code in a new file's place, as after a backup was restored."""
    assert hits(compiled()) == 0
    (path,) = files(kept)
    old = path.read_bytes()
    monkeypatch.setattr(np, "__version__", "another")
    assert hits(compiled()) == 0
    path.write_bytes(old)
    assert hits(compiled()) == 0
    assert hits(compiled()) == 1


def test_code_of_another_function_is_not_believed(kept: Path) -> None:
    """A file that was given another's name."""
    assert hits(compiled()) == 0
    (path,) = files(kept)
    compiled(small_kernel.add_each.py_func, "void(i8, i8, f4[:,::1], f4[::1], f4[:,::1])")
    (other,) = set(files(kept)) - {path}
    shutil.copy(other, path)
    assert hits(compiled()) == 0


# Edits, for real

PROGRAM = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    import numpy as np
    from qkv.nn.recurrent.gru_kernel import forward
    if len(sys.argv) > 1:
        path, old, new = sys.argv[1:]
        text = Path(path).read_text(encoding="utf-8")
        assert old in text
        Path(path).write_text(text.replace(old, new), encoding="utf-8")
    x, out, gates = np.full((1, 3), 0.5, np.float32), np.zeros((1, 1), np.float32), np.zeros((1, 3, 1), np.float32)
    code = forward.at(np.float32)
    code(0, 1, x, 0 * x, np.zeros((1, 1), np.float32), out, gates)
    print(int("numba" not in sys.modules), float(gates[0, 2, 0]))
    """
)


def run(source: Path, kept: Path, *arguments: str) -> tuple[int, float]:
    """What came from disk, and tanh(½) as a kernel of a copy of the package computes it."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    environment = {**clean, "PYTHONPATH": str(source), "NUMBA_CACHE_DIR": str(kept)}
    command = [sys.executable, "-W", "error", "-c", PROGRAM, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded, found = done.stdout.split()
    return int(loaded), float(found)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package to edit; returns the folder that holds it."""
    shutil.copytree(PACKAGE, tmp_path / "source" / "qkv", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "source"


HELPERS, OLD, NEW = (
    "tanh.py",
    "ONE, TWO, ZERO = np.float32(1), np.float32(2)",
    "ONE, TWO, ZERO = np.float32(1), np.float32(9)",
)
TANH, OTHER = np.tanh(0.5), (np.e - 1) / (np.e + 8)


def test_the_next_process_sees_an_edit_of_a_helper_in_another_file(copy: Path, tmp_path: Path) -> None:
    helpers, kept = copy / "qkv" / "compiled" / HELPERS, tmp_path / "kept"
    assert run(copy, kept) == (0, pytest.approx(TANH, rel=1e-6))
    assert run(copy, kept) == (1, pytest.approx(TANH, rel=1e-6))
    sound = helpers.read_text(encoding="utf-8")
    assert OLD in sound
    helpers.write_text(sound.replace(OLD, NEW), encoding="utf-8")
    assert run(copy, kept) == (0, pytest.approx(OTHER, rel=1e-6))
    assert run(copy, kept) == (1, pytest.approx(OTHER, rel=1e-6))


def test_an_edit_while_a_process_runs_does_not_store_its_old_code_as_new(copy: Path, tmp_path: Path) -> None:
    """The file is edited after the kernel was imported and before it is compiled."""
    edit = str(copy / "qkv" / "compiled" / HELPERS), OLD, NEW
    assert run(copy, tmp_path, *edit) == (0, pytest.approx(TANH, rel=1e-6))
    assert run(copy, tmp_path) == (0, pytest.approx(OTHER, rel=1e-6))


def test_without_source_kernels_are_compiled_in_every_process_and_one_warning_says_so(
    copy: Path, tmp_path: Path
) -> None:
    """As where only bytecode is installed: an edit could not be noticed, so nothing is loaded or stored."""
    subprocess.run([sys.executable, "-m", "compileall", "-q", "-b", str(copy)], check=True)
    for path in copy.rglob("*.py"):
        path.unlink()
    program = PROGRAM + textwrap.dedent(
        """
        forward.at(np.float64)
        """
    )
    settings = {**os.environ, "PYTHONPATH": str(copy), "NUMBA_CACHE_DIR": str(tmp_path / "kept")}
    done = subprocess.run([sys.executable, "-c", program], env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[1]) == pytest.approx(TANH, rel=1e-6)
    assert done.stderr.count("KernelCacheWarning") == 1
    assert "kernel cache: expected the source of every file that a kernel imports; got" in done.stderr
    assert "gru_kernel.py" in done.stderr
    assert not (tmp_path / "kept").exists()


# Several processes

SMALL = textwrap.dedent(
    """
    import json, warnings
    import numpy as np
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        from small_kernel import add_each, double
        x = np.ones(3, np.float32)
        double.at(x.dtype)(0, 3, x)
        add_each.at(x.dtype)
    print(json.dumps({"x": x.tolist(), "warnings": [[type(w.message).__name__, str(w.message)] for w in caught]}))
    """
)


def started(home: Path, folder: Path = Path(__file__).parent, **environment: str) -> "subprocess.Popen[str]":
    """A process that compiles the small kernels of a folder, or loads them."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    path = os.pathsep.join(map(str, (folder, PACKAGE.parent)))
    settings = {**clean, "PYTHONPATH": path, "HOME": str(home), "XDG_CACHE_HOME": str(home), **environment}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", SMALL], env=settings, stdout=pipe, stderr=pipe, text=True)


def warned(process: "subprocess.Popen[str]") -> list[list[str]]:
    """What it warned of, after a look at what it computed."""
    out, problems = process.communicate(timeout=600)
    assert process.returncode == 0, problems
    found = json.loads(out)
    assert found["x"] == [2.0, 2.0, 2.0]
    return found["warnings"]


def test_two_processes_compile_at_once(tmp_path: Path) -> None:
    both = [started(tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "kept")) for _ in range(2)]
    assert [warned(process) for process in both] == [[], []]
    assert [path.suffix for path in files(tmp_path / "kept")] == [cache.SUFFIX] * 2


def test_threads_compile_the_same_at_once(kept: Path) -> None:
    with ThreadPoolExecutor(4) as threads:
        outcomes = list(threads.map(lambda _: kernels.compile_cached(small_kernel.double.py_func, SIGNATURE), range(4)))
    for code in outcomes:
        assert hits(Outcome(code, True)) == 1
    assert [path.suffix for path in files(kept)] == [cache.SUFFIX]


def test_nothing_is_compiled_again(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    assert warned(started(tmp_path, NUMBA_CACHE_DIR=str(kept))) == []
    before = {path: path.stat().st_mtime_ns for path in files(kept)}
    assert len(before) == 2
    assert warned(started(tmp_path, NUMBA_CACHE_DIR=str(kept))) == []
    assert before == {path: path.stat().st_mtime_ns for path in files(kept)}


def test_no_folder_to_write_in_warns_once_and_works(tmp_path: Path) -> None:
    """A read-only home and a read-only installation: files stand where the folders would have to be made."""
    (folder := tmp_path / "source").mkdir()
    shutil.copy(small_kernel.__file__, folder)
    (folder / "__pycache__").write_text("not a folder")
    (home := tmp_path / "home").write_text("not a folder")
    ((kind, text),) = warned(started(home, folder))
    assert kind == "KernelCacheWarning"
    assert "NUMBA_CACHE_DIR" in text


# Damage


def halved(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def garbage(path: Path) -> None:
    path.write_bytes(np.random.default_rng(0).bytes(path.stat().st_size))


def zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def of_another_header(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"signature", b"signatura"))


def sealed_without_a_header(path: Path) -> None:
    """As somebody would write it who knows how the digest is made."""
    path.write_bytes(cache._sealed([], b"code"))  # type: ignore[arg-type]


def a_bare_object(path: Path) -> None:
    path.write_bytes(cache._opened(path.read_bytes())[1])


def a_link(path: Path) -> None:
    path.rename(path.parent / "elsewhere")
    path.symlink_to(path.parent / "elsewhere")


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def removed(path: Path) -> None:
    path.unlink()


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES = (
    *(halved, emptied, garbage, zeros, of_another_header, sealed_without_a_header),
    *(a_bare_object, a_link, a_pipe, removed),
)


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_compiled_anew_and_replaced(kept: Path, damage: Any) -> None:
    assert hits(compiled()) == 0
    assert hits(compiled()) == 1
    (path,) = files(kept)
    damage(path)
    assert hits(compiled()) == 0
    assert hits(compiled()) == 1


def test_a_byte_that_changed_is_noticed_wherever_it_is(kept: Path) -> None:
    """In machine code it would raise no error: it would run."""
    assert hits(compiled()) == 0
    (path,) = files(kept)
    sound = path.read_bytes()
    for place in [*range(0, len(sound), 397), len(sound) - 1]:
        path.write_bytes(sound[:place] + bytes([sound[place] ^ 1]) + sound[place + 1 :])
        assert hits(compiled()) == 0
        path.write_bytes(sound)
    for content in (sound[:-1], sound + b"\0"):
        path.write_bytes(content)
        assert hits(compiled()) == 0


def test_code_that_cannot_be_loaded_is_compiled_anew(kept: Path) -> None:
    """Whole and with the right header, but of no use to the linker."""
    assert hits(compiled()) == 0
    (path,) = files(kept)
    header, code = cache._opened(path.read_bytes())
    path.write_bytes(cache._sealed(header, code[:200]))
    assert hits(compiled()) == 0
    assert hits(compiled()) == 1


@pytest.mark.usefixtures("_warns_anew")
def test_what_cannot_be_stored_runs_and_warns(kept: Path) -> None:
    compiled()
    (path,) = files(kept)
    a_folder(path)
    with pytest.warns(KernelCacheWarning, match="expected code that can be stored; got"):
        assert hits(compiled()) == 0
    assert hits(compiled()) == 0
    assert files(kept) == []


@pytest.mark.usefixtures("_warns_anew")
def test_code_with_addresses_of_its_process_runs_and_is_not_stored(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_object = compiler.compile_object
    monkeypatch.setattr(compiler, "compile_object", lambda *given: compile_object(*given)._replace(lasting=False))
    with pytest.warns(KernelCacheWarning, match="got addresses of this process"):
        assert hits(compiled()) == 0
    assert files(kept) == []


# Without Numba

CALLS = textwrap.dedent(
    """
    import sys, torch, qkv
    forbidden = sys.argv[1:]

    class Forbidden:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in forbidden:
                raise ImportError(f"{name} is forbidden here")

    def refuse(event, arguments):
        if forbidden and event == "pickle.find_class":
            raise RuntimeError(f"unpickled {arguments}")

    sys.meta_path.insert(0, Forbidden())
    sys.addaudithook(refuse)
    x = torch.linspace(-1, 1, 2 * 80 * 16).view(2, 80, 16).requires_grad_()
    additive, entmax = {"score": qkv.scores.Additive(torch.ones(16))}, {"normalizer": qkv.normalizers.Entmax()}
    for backend, options in (("fused", additive), ("rowwise", entmax)):
        output = qkv.attention(x, x, x, backend=backend, **options)
        (gradient,) = torch.autograd.grad(output.square().sum(), x)
        print(output.double().sum().item(), gradient.double().abs().sum().item())
    print(qkv.explain(x, x, x, **additive).backend)
    if forbidden:
        assert "numba" not in sys.modules
    """
)


def test_what_is_on_disk_runs_without_numba_and_without_a_pickle() -> None:
    """The same numbers and the same choice as in a process that may compile; it fills the folder if need be."""
    settings = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    printed = []
    for forbidden in ([], ["numba"]):
        command = [sys.executable, "-c", CALLS, *forbidden]
        done = subprocess.run(command, env=settings, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    assert printed[0] == printed[1]


def test_without_numba_and_without_code_the_error_names_the_kernel(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("qkv.compiled.compiler")
    monkeypatch.setitem(sys.modules, "qkv.compiled.compiler", None)
    with pytest.raises(UnsupportedError, match=r"small_kernel: expected its machine code on disk, or Numba to compile"):
        kernels.compile_cached(small_kernel.double.py_func, SIGNATURE)


# Folders


def mode(folder: Path) -> int:
    return stat.S_IMODE(folder.stat().st_mode)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source file, no folder chosen by the user, and a home of its own."""
    _choose(monkeypatch, "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    (tmp_path / "code").mkdir()
    return tmp_path / "code" / "some_kernel.py"


def test_a_folder_beside_the_source_comes_first_and_is_the_users_alone(source: Path) -> None:
    before = os.umask(0)
    try:
        folder = cache.cache_folder(source)
    finally:
        os.umask(before)
    assert folder == source.parent / "__pycache__"
    assert mode(folder) == 0o700


@pytest.mark.parametrize("writable", [0o755, 0o750, 0o700, 0o777, 0o775, 0o702, 0o1777])
def test_a_folder_that_others_can_write_to_is_not_used(source: Path, tmp_path: Path, writable: int) -> None:
    (beside := source.parent / "__pycache__").mkdir()
    beside.chmod(writable)
    folder = cache.cache_folder(source)
    if writable & 0o022:
        assert folder.parent == tmp_path / "home" / "qkv"
        assert [mode(each) for each in (folder, folder.parent, folder.parents[1])] == [0o700] * 3
    else:
        assert folder == beside


def test_a_folder_of_another_user_is_not_used(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (source.parent / "__pycache__").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(OSError, match=r"__pycache__: it belongs to another user; .*home/qkv.*: it belongs to another"):
        cache.cache_folder(source)


def test_a_link_or_a_file_is_not_a_folder(source: Path, tmp_path: Path) -> None:
    beside = source.parent / "__pycache__"
    beside.symlink_to(tmp_path, target_is_directory=True)
    assert cache.cache_folder(source).parent == tmp_path / "home" / "qkv"
    beside.unlink()
    beside.write_text("")
    assert cache.cache_folder(source).parent == tmp_path / "home" / "qkv"


def test_a_folder_that_cannot_be_written_to_is_not_used(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read-only installation, with code in it or without."""
    (beside := source.parent / "__pycache__").mkdir()
    monkeypatch.setattr(os, "access", lambda path, _: Path(path) != beside)
    assert cache.cache_folder(source).parent == tmp_path / "home" / "qkv"


def test_the_folder_that_the_user_chose_is_the_only_one(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _choose(monkeypatch, tmp_path / "chosen")
    folder = cache.cache_folder(source)
    assert folder.parent == tmp_path / "chosen"
    assert (mode(folder), mode(folder.parent)) == (0o700, 0o700)
    assert cache.cache_folder(tmp_path / "other" / "some_kernel.py") != folder
    folder.chmod(0o770)
    with pytest.raises(OSError, match="others can write to it"):
        cache.cache_folder(source)


@pytest.mark.usefixtures("_warns_anew")
def test_code_in_a_folder_that_others_can_write_to_is_neither_loaded_nor_stored(kept: Path) -> None:
    assert hits(compiled()) == 0
    (folder,) = kept.iterdir()
    folder.chmod(0o777)
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    with pytest.warns(KernelCacheWarning, match="that nobody else can write to; got .*others can write to it"):
        assert hits(compiled()) == 0
    assert hits(compiled()) == 0  # without a second warning
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_a_function_of_no_file_is_compiled_and_not_stored(kept: Path) -> None:
    """Typed at a prompt, or in an example of a docstring."""
    names: dict[str, Any] = {}
    exec(compile("def f(start, stop, x):\n    for i in range(start, stop): x[i] *= 2", "<stdin>", "exec"), names)
    assert hits(compiled(names["f"])) == 0
    assert not kept.exists()
