"""Every kernel of the package."""

from collections.abc import Iterator

from qkv.compiled import build
from qkv.compiled.kernels import Kernel
from qkv.compiled.sources import PACKAGE


def modules() -> list[str]:
    """The names of the modules that may hold kernels, or functions that kernels call."""
    files = sorted(PACKAGE.rglob("*.py"))
    names = [".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in files]
    compilers = tuple(f"qkv.compiled.{name}" for name in ("compiler", "dispatchers", "entry"))
    return [
        name
        for name in names
        if name.endswith("_kernel")
        or (name.startswith(("qkv.linalg.", "qkv.compiled.")) and name not in compilers and "__" not in name)
    ]


def kernels() -> Iterator[tuple[str, Kernel]]:
    """Every kernel with its name."""
    for job in build.jobs(build.modules()):
        if job.dtype == "float32":
            key = [str(job.key)] if job.key else []
            yield ".".join([job.module.rpartition(".")[2], job.name, *key]), job.kernel()
