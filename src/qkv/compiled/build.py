"""Build libraries of compiled kernels: `python -m qkv.compiled.build`, with the packages of the extra `build`.

    python -m qkv.compiled.build                 for this processor, beside this file: what a checkout needs
    python -m qkv.compiled.build x86-64-v3       for other processors, of this kind of machine or another
    python -m qkv.compiled.build all             for every processor of this kind of machine: what a wheel holds

Each kernel becomes an object file, on all cores, and a linker makes a library of them. Object files are kept in the
checkout's folder `build`, so that what has not changed is not compiled again. Equal sources and versions give equal
bytes. Nothing here imports PyTorch.
"""

import argparse
import hashlib
import importlib
import importlib.metadata
import importlib.util
import json
import multiprocessing
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from qkv.compiled.kernels import Kernel
from qkv.compiled.library import FOLDER, MANIFEST
from qkv.compiled.sources import PACKAGE, Sources
from qkv.compiled.target import BUILD_VARIABLE, TARGETS, Target, named, served
from qkv.errors import CompilationError, ConfigError
from qkv.files import read_file
from qkv.system import cores, rename

OBJECTS = PACKAGE.parents[1] / "build" / "kernels"
_COMPILER = PACKAGE / "compiled" / "compiler.py"
_VERSIONS = "numba", "llvmlite"
_EMULATIONS = {"x86_64": "elf_x86_64", "aarch64": "aarch64linux"}
_FLAGS = (
    *("-shared", "-Bsymbolic", "--strip-all", "--build-id=none", "--hash-style=gnu"),
    *("-z", "now", "-z", "relro", "-z", "noexecstack"),
)
_LIMIT = 1 << 28
"""Bytes of the largest library."""
_EVERY = 10.0
"""Seconds between lines of progress where standard error is no terminal."""


class Job(NamedTuple):
    """A kernel to compile for a float type, by name, so that another process can find it.

    Attributes:
        module: the module that holds it.
        name: of a kernel, or of a dictionary of kernels.
        key: of the kernel in the dictionary; None if it is in none.
        dtype: the float type.
    """

    module: str
    name: str
    key: Any
    dtype: str

    def kernel(self) -> Kernel:
        """Return the kernel."""
        value = vars(importlib.import_module(self.module))[self.name]
        kernel: Kernel = value if self.key is None else value[self.key]
        return kernel


def modules() -> list[str]:
    """Return the names of the package's modules that hold kernels.

    Example:
        >>> "qkv.linalg.packed_kernel" in modules()
        True
    """
    files = sorted(PACKAGE.rglob("*_kernel.py"))
    return [".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in files]


def jobs(names: Sequence[str]) -> list[Job]:
    """Return the kernels of some modules, each machine code once, what takes longest first.

    Args:
        names: of modules.
    """
    by_symbol: dict[str, tuple[int, Job]] = {}
    for module in names:
        for name, value in vars(importlib.import_module(module)).items():
            for key, kernel in value.items() if isinstance(value, dict) and name[:2] != "__" else [(None, value)]:
                if isinstance(kernel, Kernel) and kernel.py_func.__module__ == module:
                    for dtype in kernel.dtypes:
                        # Functions of many arguments take longest.
                        job = Job(module, name, key, str(dtype))
                        by_symbol.setdefault(kernel.symbol(dtype), (-len(kernel.signature), job))
    return [job for _, job in sorted(by_symbol.values(), key=lambda pair: pair[0])]


def build(
    target: Target,
    path: Path,
    names: Sequence[str] | None = None,
    objects: Path | None = None,
    processes: int | None = None,
) -> bool:
    """Build a library, unless it is there and nothing has changed.

    Args:
        target: the processors that it is for.
        path: of the library.
        names: of the modules whose kernels it holds; None for all of the package.
        objects: the folder where object files are kept; None to keep none.
        processes: how many compile; None for one for each core that this process may use.

    Returns:
        Whether it was built.

    Raises:
        CompilationError: there is no linker, or a process or the linker failed.
        NumbaError: Numba does not understand a kernel.
    """
    sources, kernels = Sources(), jobs(modules() if names is None else names)
    files = [_COMPILER, *(_file(job) for job in kernels)]
    digests = {job.kernel().symbol(job.dtype): _digest(job, target, sources) for job in kernels}
    described = {
        "target": target.name,
        **_versions(),
        "kernels": hashlib.sha256(repr(sorted(digests.items())).encode()).hexdigest(),
        "sources": sources.digests(files),
    }
    manifest = json.dumps(described, sort_keys=True).encode()
    if path.exists() and manifest + b"\0" in read_file(path, _LIMIT):
        return False
    linker = _linker(target)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) if objects is None else objects / target.name
        folder.mkdir(parents=True, exist_ok=True)
        paths = {symbol: folder / f"{symbol}-{digest[:16]}.o" for symbol, digest in digests.items()}
        missing = [job for job in kernels if not paths[job.kernel().symbol(job.dtype)].exists()]
        _Progress(target, len(missing)).watch(_compiled(target, missing, paths, manifest, Path(scratch), processes))
        path.parent.mkdir(parents=True, exist_ok=True)
        linked = path.with_name(f".{path.name}.{os.getpid()}")
        order = [paths[symbol] for symbol in sorted(paths)]
        try:
            _run([*linker, *_FLAGS, "-o", str(linked), str(Path(scratch) / MANIFEST), *map(str, order)])
            rename(linked, path)
        finally:
            linked.unlink(missing_ok=True)
        for each in folder.glob("*.o"):
            if each not in order:
                each.unlink(missing_ok=True)  # another process may build the same
    return True


def targets(chosen: Sequence[str]) -> list[Target]:
    """Return the targets of some names, of `all` every one for this kind of machine, of none this processor's.

    Raises:
        ConfigError: a name is unknown, or no target serves this processor.

    Example:
        >>> [target.name for target in targets(["x86-64-v3"])]
        ['x86-64-v3']
    """
    if list(chosen) == ["all"]:
        return [target for target in TARGETS if sys.platform == "linux" and target.machine == platform.machine()]
    if chosen:
        return [named(name) for name in chosen]
    able, reason = served()
    if not able:
        raise ConfigError("target", "a processor that kernels are built for", reason, "Name a target.")
    return able[:1]


def _file(job: Job) -> Path:
    path = importlib.import_module(job.module).__file__
    assert path is not None
    return Path(path)


def _digest(job: Job, target: Target, sources: Sources) -> str:
    """Return a digest of all that decides a kernel's machine code."""
    decides = sources.digest([_COMPILER, _file(job)]), tuple(target[:5]), sorted(_versions().items()), np.__version__
    return hashlib.sha256(repr(decides).encode()).hexdigest()


@cache
def _versions() -> dict[str, str]:
    try:
        return {name: importlib.metadata.version(name) for name in _VERSIONS}
    except importlib.metadata.PackageNotFoundError as error:
        hint = "Install what compiles: pip install 'qkv[build]'."
        raise CompilationError("kernels", "Numba to compile them", f"no {error.name}", hint) from None


def _compiled(
    target: Target,
    missing: Sequence[Job],
    paths: dict[str, Path],
    manifest: bytes,
    scratch: Path,
    processes: int | None,
) -> Iterator[Job]:
    """Compile in other processes; yield each job when its object file is there.

    The manifest is compiled too, to a file of the scratch folder.
    """
    count = max(1, min(len(missing), processes or cores()))
    with _Environment(target), ProcessPoolExecutor(count, multiprocessing.get_context("spawn")) as pool:
        running: dict[Future[None], Job] = {
            pool.submit(_compile, job, paths[job.kernel().symbol(job.dtype)]): job for job in missing
        }
        last = pool.submit(_compile_data, manifest, scratch / MANIFEST)
        try:
            for done in as_completed(running):
                done.result()
                yield running[done]
            last.result()
        except BrokenProcessPool as error:
            hint = "Systems kill processes when memory runs out. Repeat with --jobs 1: what was compiled is kept."
            raise CompilationError("kernels", "machine code", str(error), hint) from None
        finally:
            pool.shutdown(cancel_futures=True)


class _Environment:
    """What the processes that compile see: the target, and no settings of Numba that would change their code."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._before: dict[str, str] = {}

    def __enter__(self) -> None:
        self._before = dict(os.environ)
        for name in [name for name in os.environ if name.startswith("NUMBA_")]:
            del os.environ[name]
        os.environ |= {BUILD_VARIABLE: self._target.name, "NUMBA_DISABLE_INTEL_SVML": "1"}

    def __exit__(self, *_: object) -> None:
        os.environ.clear()
        os.environ.update(self._before)


def _compile(job: Job, path: Path) -> None:
    import gc

    from qkv.compiled.compiler import kernel_object

    gc.disable()  # it takes a fifth of the time in which Numba makes millions of objects
    try:
        _write(path, kernel_object(job.kernel(), np.dtype(job.dtype)))
    except Exception as error:
        error.add_note(f"{job.module}.{job.name}, {job.dtype}")
        raise
    finally:
        gc.enable()


def _compile_data(manifest: bytes, path: Path) -> None:
    from qkv.compiled.compiler import data_object

    _write(path, data_object(manifest))


def _write(path: Path, content: bytes) -> None:
    """Write a file that a reader sees as a whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    rename(temporary, path)


class _Progress:
    """One line on standard error that says what is compiled, and how much is left."""

    def __init__(self, target: Target, total: int) -> None:
        self._name, self._total, self._start = target.name, total, time.monotonic()

    def watch(self, jobs: Iterator[Job]) -> None:
        """Show how jobs get done."""
        shown = 0.0
        if self._total:
            how = "the slowest first; minutes on idle cores"
            sys.stderr.write(f"qkv: kernels for {self._name}: {self._total} to compile, {how}\n")
            sys.stderr.flush()
        for count, job in enumerate(jobs, 1):
            seconds = time.monotonic() - self._start
            name = f"{job.module.removeprefix('qkv.')}.{job.name}, {job.dtype}"
            text = f"qkv: kernels for {self._name}: {count} of {self._total} compiled in {seconds:.0f} s"
            if sys.stderr.isatty():
                sys.stderr.write(f"\r\x1b[K{text}" + ("\n" if count == self._total else f" ({name})"))
            elif seconds - shown >= _EVERY or count == self._total:
                shown = seconds
                sys.stderr.write(f"{text}\n")
            sys.stderr.flush()


def _linker(target: Target) -> list[str]:
    """Return the command of a linker for a target.

    Raises:
        CompilationError: there is none.
    """
    here = target.machine == platform.machine() and sys.platform == "linux"
    for name in [*(["ld"] if here else []), f"{target.machine}-linux-gnu-ld", "ld.lld"]:
        if path := shutil.which(name):
            return [path, "-m", _EMULATIONS[target.machine]]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "ld.lld", "-m", _EMULATIONS[target.machine]]
    hint = "Install one: `apt install binutils`, or `pip install ziglang`."
    raise CompilationError("kernels", f"a linker for {target.name}", "none", hint)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        got = f"exit code {done.returncode}: {done.stderr.strip()}"
        raise CompilationError(Path(command[0]).name, "a library", got, "Report this as a bug.")


def main() -> None:
    """Build the libraries that the command line names."""
    parser = argparse.ArgumentParser(
        prog=f"{Path(sys.executable).name} -m qkv.compiled.build",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("targets", nargs="*", help=f"{', '.join(target.name for target in TARGETS)}, or all")
    parser.add_argument("--into", type=Path, default=FOLDER, help="the folder of the libraries")
    parser.add_argument("--objects", type=Path, default=OBJECTS, help="the folder of object files")
    parser.add_argument("--jobs", type=int, help="number of processes; by default one per core")
    arguments = parser.parse_args()
    try:
        for target in targets(arguments.targets):
            build(target, arguments.into / f"{target.name}.so", objects=arguments.objects, processes=arguments.jobs)
    except (CompilationError, ConfigError) as error:
        sys.exit(f"qkv: {error}")


if __name__ == "__main__":
    main()
