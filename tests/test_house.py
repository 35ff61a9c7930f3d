"""The house: public names, light imports, no pickles, short files, a wheel that works."""

import ast
import importlib
import os
import pkgutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

import qkv

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PUBLIC = [
    "QkvError",
    "RowState",
    "__version__",
    "attention",
    "attention_map",
    "attention_with_state",
    "attention_with_weights",
    "explain",
    "load",
    "masks",
    "merge",
    "normalizers",
    "record",
    "scores",
]
FORBIDDEN = ("numba", "triton", "matplotlib", "starlette", "uvicorn", "transformers", "tensorboard", "sacrebleu")


def packages() -> list[str]:
    found = pkgutil.walk_packages(qkv.__path__, "qkv.")
    return ["qkv", *(module.name for module in found if module.ispkg)]


def test_public_names_are_these() -> None:
    assert qkv.__all__ == PUBLIC


@pytest.mark.parametrize("package", packages())
def test_every_public_name_resolves_to_something_callable_or_a_room(package: str) -> None:
    module = importlib.import_module(package)
    for name in getattr(module, "__all__", []):
        assert getattr(module, name) is not None
        assert name in dir(module)


def test_public_functions_are_functions_even_after_their_rooms_were_imported() -> None:
    for name in packages():
        importlib.import_module(name)
    for name in ("attention", "attention_map", "explain", "load", "merge", "record"):
        assert not hasattr(getattr(qkv, name), "__path__")
        assert callable(getattr(qkv, name))


def test_core_imports_without_the_optional_parts() -> None:
    script = f"""
import sys
for name in {FORBIDDEN!r}:
    sys.modules[name] = None
import torch, qkv
x = torch.randn(2, 5, 8)
qkv.attention(x, x, x, mask=qkv.masks.causal())
qkv.attention(x, x, x, score=qkv.scores.Gaussian(), mask=qkv.masks.causal())
qkv.attention_map(x, x).row(0)
assert not [name for name in sys.modules if name.split(".")[0] in {FORBIDDEN!r} and sys.modules[name] is not None]
"""
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True, timeout=120)


def test_nothing_is_ever_unpickled() -> None:
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
                assert not {"pickle", "dill", "joblib", "shelve", "marshal", "cloudpickle"} & set(names), path
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in {"torch.load", "eval", "exec", "np.load", "numpy.load"}, f"{path}: {called}"
                assert not any(keyword.arg == "allow_pickle" for keyword in node.keywords), path


def test_files_answer_one_question_each() -> None:
    long = {str(path.relative_to(ROOT)): lines for path in SOURCES if (lines := _lines(path)) > 410}
    assert not long, "files over about 400 lines are two files"


def _lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_functions_are_short() -> None:
    lengths = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                if body:
                    lengths.append((body[-1].end_lineno or 0) - body[0].lineno + 1)
    lengths.sort()
    assert lengths[-1] <= 100
    assert lengths[int(0.9 * len(lengths))] <= 35


def test_the_built_wheel_installs_and_runs(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path / "dist"), str(ROOT)]
    # The source tree stays clean: setuptools builds where it is told to.
    environment = os.environ | {"DIST_EXTRA_CONFIG": str(_scratch(tmp_path))}
    subprocess.run(build, check=True, timeout=180, env=environment, capture_output=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    home = tmp_path / "fresh"
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    site = Path(sysconfig.get_path("purelib", vars={"base": str(home)}))
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(install, check=True, timeout=120, capture_output=True)
    # What qkv needs is borrowed from here, behind the fresh packages: qkv itself comes from the wheel.
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    script = (
        "import qkv, torch, qkv.view; x = torch.randn(2, 5, 8); print(qkv.__file__, qkv.attention(x, x, x).shape); "
        "qkv.view.html([])"
    )
    done = subprocess.run([python, "-c", script], check=True, timeout=120, capture_output=True, text=True, cwd=tmp_path)
    assert str(home) in done.stdout
    version = subprocess.run(
        [home / "bin" / "qkv", "--version"], check=True, timeout=120, capture_output=True, text=True, cwd=tmp_path
    )
    assert version.stdout == f"qkv {qkv.__version__}\n"


def _scratch(folder: Path) -> Path:
    config = folder / "build.cfg"
    config.write_text(f"[build]\nbuild_base = {folder / 'build'}\n[egg_info]\negg_base = {folder}\n", encoding="utf-8")
    return config
