"""Project rules: public names, light imports, nothing unpickled, a wheel that installs."""

import ast
import importlib
import os
import pkgutil
import platform
import pydoc
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import qkv
from qkv.compiled.build import targets
from qkv.compiled.target import CHOICE

SOURCE = Path(qkv.__file__).parent
ROOT = SOURCE.parent.parent
FILES = sorted(path for path in SOURCE.rglob("*.py"))
PACKAGES = [
    "qkv",
    *(f"qkv.{info.name}" for info in pkgutil.walk_packages([str(SOURCE)]) if info.ispkg and "." not in info.name),
]


def table(package: str) -> dict[str, str]:
    """The public names in a package's call of `lazy`, and the modules they are imported from; empty without one."""
    for node in ast.walk(ast.parse(init(package))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "lazy":
            listed = ast.literal_eval(node.args[1])
            return {name: module for module, names in listed.items() for name in names.split()}
    return {}


def typed(package: str) -> dict[str, str]:
    """The names that type checkers read as public, and the modules they are imported from."""
    found = {}
    for node in ast.walk(ast.parse(init(package))):
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            imports = [part for part in node.body if isinstance(part, ast.ImportFrom)]
            found |= {name.name: part.module for part in imports for name in part.names if name.asname == name.name}
    return found


def init(package: str) -> str:
    return SOURCE.joinpath(*package.split(".")[1:], "__init__.py").read_text(encoding="utf-8")


LAZY = [package for package in PACKAGES if table(package)]


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_resolve(package: str) -> None:
    module = importlib.import_module(package)
    for name in getattr(module, "__all__", []):
        assert getattr(module, name) is not None, f"{package}.{name}"


@pytest.mark.parametrize("package", LAZY)
def test_no_public_name_is_taken_by_the_module_that_defines_it(package: str) -> None:
    """Importing a module makes its name an attribute of the package, before or after the public name is read."""
    for name, module in table(package).items():
        assert module != f"{package}.{name}" or not hasattr(importlib.import_module(module), name)


@pytest.mark.parametrize("package", LAZY)
def test_type_checkers_read_the_public_names(package: str) -> None:
    public = {name: package if module == f"{package}.{name}" else module for name, module in table(package).items()}
    assert typed(package) == public
    assert {*importlib.import_module(package).__all__} - {"__version__"} == set(public)


@pytest.mark.parametrize("package", LAZY)
def test_a_listing_shows_the_public_names_and_help_the_classes(package: str) -> None:
    module = importlib.import_module(package)
    assert sorted(dir(module)) == sorted(module.__all__)
    classes = [name for name in module.__all__ if isinstance(getattr(module, name), type)]
    told = pydoc.plain(pydoc.render_doc(module))
    assert all(f"class {name}" in told for name in classes)


@pytest.mark.parametrize("name", ["qkv.biases", "qkv.errors"])
def test_a_listing_of_a_module_shows_what_it_defines_and_not_what_it_imports(name: str) -> None:
    module = importlib.import_module(name)
    assert sorted(dir(module)) == sorted(module.__all__)
    defined = (item for item in vars(module).values() if getattr(item, "__module__", "") == name)
    public = {item.__name__ for item in defined if not item.__name__.startswith("_")}
    assert public <= set(module.__all__)


def test_the_package_runs_as_the_command() -> None:
    assert run(sys.executable, "-m", "qkv", "--version") == f"qkv {qkv.__version__}\n"


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'atention'"):
        qkv.atention  # noqa: B018
    assert not hasattr(qkv.scores, "Nothing")


def run(*command: str, **environment: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


OPTIONAL = (
    "numba",
    "llvmlite",
    "triton",
    "matplotlib",
    "prometheus_client",
    "starlette",
    "uvicorn",
    "transformers",
    "tensorboard",
)
FORBIDDEN = """
import sys
sys.modules.update(dict.fromkeys(sys.argv[1:]))  # as if they were not installed
import torch, qkv
query = torch.randn(1, 2, 5, 4)
query.requires_grad_()
for score in (qkv.scores.ScaledDot(), qkv.scores.Gaussian(), qkv.scores.Additive(torch.ones(4))):
    qkv.attention(query, query, query, score=score, mask=qkv.masks.causal()).sum().backward()
    print(qkv.explain(query, query, query, score=score).backend)
"""


def test_the_core_works_without_the_optional_parts() -> None:
    """A fresh process in which compilers, plotting and the web server are unavailable."""
    chosen = run(sys.executable, "-W", "ignore", "-c", FORBIDDEN, *OPTIONAL).split()
    assert len(chosen) == 3


def test_import_is_light() -> None:
    """`import qkv` alone imports nothing heavy."""
    heavy = ("torch", "numpy", "numba", "matplotlib", "tokenizers", "typer", "rich")
    loaded = run(sys.executable, "-c", "import sys, qkv; print(*sys.modules)").split()
    assert not [name for name in heavy if name in loaded]


def test_answering_imports_no_training() -> None:
    """A model that is loaded and answers needs the tables of settings, and nothing that trains."""
    program = """
import sys, qkv
qkv.load("example", task="translate").translate(["Die Frau schläft ."])
print(*sys.modules)
"""
    loaded = run(sys.executable, "-c", program).split()
    assert "qkv.tasks.translate.predict" in loaded
    assert not [name for name in loaded if name == "qkv.training" or name.startswith("qkv.training.")]


FIRST_LOOK = """
import sys, torch
known = set(sys.modules)
import qkv
from qkv.compiled.build import targets
from qkv.compiled.target import CHOICE
for score in ("ScaledDot()", "Gaussian()", "Additive(torch.ones(32))", "Boxcar(8.0)", "Epanechnikov(8.0)"):
    for normalizer in ("Softmax()", "Sigmoid()", "Hard()", "Sparsemax()", "Entmax()"):
        query, key, value = torch.randn(3, 2, 4, 16, 32, requires_grad=True).unbind()
        call = f"qkv.attention(query, key, value, score=qkv.scores.{score}, normalizer=qkv.normalizers.{normalizer})"
        eval(call).sum().backward()
query, key, value = torch.randn(3, 1, 8, 2048, 64).unbind()
qkv.attention(query, key, value, mask=qkv.masks.causal())
print(*sys.modules.keys() - known)
query = torch.randn(1, 1, 600, 8, requires_grad=True)
qkv.flex_attention(query, query, query, lambda s, b, h, i, j: 5 * torch.tanh(s / 5) + (i - j)).sum().backward()
qkv.flex_attention(query, query, query, lambda s, b, h, i, j: s * s).sum().backward()
print(*sys.modules.keys() - known)
"""


def test_a_first_look_and_plain_dot_products_import_no_compiler() -> None:
    """Small calls of any mechanism, and dot products of any length: what PyTorch computes by itself.

    A function of flex_attention imports none of PyTorch's.
    """
    loaded, later = (line.split() for line in run(sys.executable, "-c", FIRST_LOOK).splitlines())
    of_pytorch = ("torch._dynamo", "torch._inductor", "sympy")
    compilers = (*of_pytorch, "numba", "llvmlite", "torch.export", "matplotlib")
    assert not [name for name in loaded if name.startswith(compilers)]
    assert not [name for name in later if name.startswith(of_pytorch)]


INSTALLED = """
import sys, qkv, torch
x = torch.ones(1, 600, 32, requires_grad=True)
score = qkv.scores.Additive(torch.ones(32))
qkv.attention(x, x, x, score=score).sum().backward()
compilers = [name for name in ("numba", "llvmlite") if name in sys.modules]
print(qkv.__file__, qkv.explain(x, x, x, score=score).backend, *compilers)
"""


@pytest.mark.slow
def test_the_wheel_installs_and_runs(tmp_path: Path) -> None:
    """Installs into a fresh environment that sees the packages of this one, so that nothing is downloaded."""
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path / "dist"), str(ROOT))
    (wheel,) = (tmp_path / "dist").glob("qkv-*.whl")
    libraries = {f"qkv/compiled/libraries/{target.name}.so" for target in targets(["all"])}
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert {name for name in names if name.endswith(".so")} == libraries
        record, metadata = (
            archive.read(next(name for name in names if name.endswith(end))).decode()
            for end in ("/RECORD", "/METADATA")
        )
    assert all(f"{name},sha256=" in record for name in libraries)
    assert not re.search(r"^Requires-Dist: (numba|llvmlite)(?!.*extra ==)", metadata, re.MULTILINE)
    assert wheel.name.endswith(f"-py3-none-manylinux_2_17_{platform.machine()}.whl") or not libraries
    fresh = tmp_path / "fresh"
    venv.create(fresh, with_pip=True)
    python = fresh / "bin" / "python"
    # Pip would leave out the wheel of a package that it finds on PYTHONPATH.
    run(str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel), PYTHONPATH="")
    site = Path(run(str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    # A path in a .pth file comes after the environment's own: qkv itself comes from the wheel.
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    home, backend, *compilers = run(str(python), "-W", "ignore", "-c", INSTALLED, PYTHONPATH="").split()
    assert Path(home).is_relative_to(fresh), "the wheel itself, not the sources"
    assert backend == ("fused" if CHOICE.target is not None else "blocked")
    assert compilers == []
    assert (site / "qkv" / "py.typed").exists()
    if (SOURCE / "cli").exists():
        assert qkv.__version__ in run(str(fresh / "bin" / "qkv"), "--version", PYTHONPATH="")
