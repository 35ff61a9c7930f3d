"""No file can choose code to run: the source contains no call that would allow it."""

import ast
from pathlib import Path

import pytest

import qkv

SOURCE = Path(qkv.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
MODULES = {
    "pickle",
    "cPickle",
    "_pickle",
    "cloudpickle",
    "dill",
    "joblib",
    "shelve",
    "marshal",
    "yaml",
    "code",
    "runpy",
}
NAMES = {"eval", "exec", "compile", "__import__", "input"}
METHODS = {
    *(("torch", name) for name in ("load", "compile_from_source")),
    *((owner, name) for owner in ("np", "numpy") for name in ("load", "fromfile", "loadtxt", "genfromtxt")),
    *(("os", name) for name in ("system", "popen", "execv", "execvp", "spawnv")),
    *(("jit", "load"), ("package", "PackageImporter"), ("hub", "load"), ("subprocess", "getoutput")),
}
ALLOWED = {
    "_lazy.py": {"import_module"},  # modules that the packages list in their source
    "tasks/warming.py": {"import_module"},  # modules of the package that end in _kernel
}


def found_in(tree: ast.AST) -> list[str]:
    """Calls that run code from a file, with their lines."""
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found += [(node.lineno, a.name) for a in names if a.name.split(".")[0] in MODULES]
            case ast.ImportFrom(module=str(module), names=names):
                found += [(node.lineno, module)] if module.split(".")[0] in MODULES else []
                found += [(node.lineno, a.name) for a in names if (module.rpartition(".")[2], a.name) in METHODS]
            case ast.Call(func=ast.Name(id=name)) if name in NAMES:
                found.append((node.lineno, name))
            case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=name)) if (owner, name) in METHODS:
                found.append((node.lineno, f"{owner}.{name}"))
            case ast.Call(func=ast.Attribute(attr="import_module") | ast.Name(id="import_module")) if not _is_own(node):
                found.append((node.lineno, "import_module"))
            case ast.keyword(arg="allow_pickle" | "weights_only" | "shell" | "trust_remote_code"):
                found.append((node.value.lineno, str(node.arg)))
    return [f"line {line}: {name}" for line, name in sorted(found)]


def _is_own(node: ast.Call) -> bool:
    """Return whether the module is one of the package, written out, which no file can choose."""
    return bool(node.args) and isinstance(name := getattr(node.args[0], "value", None), str) and name.startswith("qkv.")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_nothing_in_a_file_is_run(path: Path) -> None:
    allowed = ALLOWED.get(path.relative_to(SOURCE).as_posix(), set())
    found = found_in(ast.parse(path.read_text(encoding="utf-8")))
    assert [one for one in found if one.rpartition(" ")[2] not in allowed] == []


@pytest.mark.parametrize(
    "text",
    [
        *("import pickle", "from pickle import loads", "import yaml.loader", "from torch import load", "torch.load(x)"),
        *("eval(text)", "exec(text)", "__import__(name)", "numpy.load(x)", "os.system(x)", "run(x, shell=True)"),
        *("importlib.import_module(name)", 'import_module("pickle")', 'import_module("qkv." + name)'),
        *('import_module(f"qkv.{name}")', "from torch.hub import load", "f(trust_remote_code=True)"),
    ],
)
def test_the_search_finds_each(text: str) -> None:
    assert found_in(ast.parse(text))
