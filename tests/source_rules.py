"""Rules that hold in every file of the source: `python -m tests.source_rules`, a part of `make check`.

A rule finds names in a syntax tree. A file may use the names that a row of `allowed` lists for it, and no others; a row
that no file needs is reported as well.
"""

import ast
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.platforms.names import absent

import qkv
from qkv import errors
from qkv.tasks.answerers import CLASSES

SOURCE = Path(qkv.__file__).parent


@cache
def nodes(tree: ast.Module) -> tuple[ast.AST, ...]:
    """Every node of a syntax tree; all rules pass over the same ones."""
    return tuple(ast.walk(tree))


class Use(NamedTuple):
    """A name that a rule watches, and the line that uses it."""

    line: int
    name: str


@dataclass(frozen=True)
class Rule:
    """What a rule watches.

    Attributes:
        advice: what to do instead.
        uses: the uses in a file.
        allowed: the names that the files of a pattern may use.
    """

    advice: str
    uses: Callable[[ast.Module], Iterator[Use]]
    allowed: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def broken(self, trees: Mapping[str, ast.Module]) -> Iterator[str]:
        """Every use that is not allowed, as `file:line: name: advice`, and every row that allows nothing."""
        needed = set()
        for file, tree in trees.items():
            for use in sorted(set(self.uses(tree))):
                rows = [row for row, names in self.allowed.items() if fnmatch(file, row) and use.name in names]
                needed.update(rows)
                if not rows:
                    yield f"{file}:{use.line}: {use.name}: {self.advice}"
        yield from (f"{row}: no file needs this row of `allowed`" for row in self.allowed if row not in needed)


RUNNING_MODULES = {
    *("pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "yaml", "code", "runpy"),
}
RUNNING_FUNCTIONS = {"eval", "exec", "compile", "__import__", "input"}
RUNNING_METHODS = {
    *(("torch", name) for name in ("load", "compile_from_source")),
    *((owner, name) for owner in ("np", "numpy") for name in ("load", "fromfile", "loadtxt", "genfromtxt")),
    *(("os", name) for name in ("system", "popen", "execv", "execvp", "spawnv")),
    *(("jit", "load"), ("package", "PackageImporter"), ("hub", "load"), ("subprocess", "getoutput")),
}
RUNNING_ARGUMENTS = {"allow_pickle", "weights_only", "shell", "trust_remote_code"}


def running(tree: ast.Module) -> Iterator[Use]:
    """Whatever could run code that a file holds or names."""
    for node in nodes(tree):
        match node:
            case ast.Import(names=names):
                yield from (Use(node.lineno, a.name) for a in names if a.name.split(".")[0] in RUNNING_MODULES)
            case ast.ImportFrom(module=str(module), names=names):
                if module.split(".")[0] in RUNNING_MODULES:
                    yield Use(node.lineno, module)
                owner = module.rpartition(".")[2]
                yield from (Use(node.lineno, a.name) for a in names if (owner, a.name) in RUNNING_METHODS)
            case ast.Call(func=ast.Name(id=name)) if name in RUNNING_FUNCTIONS:
                yield Use(node.lineno, name)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=name)) if (owner, name) in RUNNING_METHODS:
                yield Use(node.lineno, f"{owner}.{name}")
            case ast.Call(func=ast.Attribute(attr="import_module") | ast.Name(id="import_module")):
                # Of qkv's own modules too: such an import is hidden from the rules of imports.
                yield Use(node.lineno, "import_module")
            case ast.keyword(arg=str(argument)) if argument in RUNNING_ARGUMENTS:
                yield Use(node.value.lineno, argument)


OPENERS = {"open", "read_text", "read_bytes", "safe_open", "load_file", "fromfile", "from_file", "memmap", "mmap"}


def opening(tree: ast.Module) -> Iterator[Use]:
    """Names by which a file is opened, other than functions of `qkv.data` that read through the guarded reader."""
    guarded = {
        a.asname or a.name
        for node in nodes(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("qkv.data.")
        for a in node.names
    }
    for node in nodes(tree):
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in OPENERS - guarded:
                yield Use(node.lineno, name)
            case ast.ImportFrom(names=names):
                yield from (Use(node.lineno, a.name) for a in names if a.name in OPENERS - guarded)


def parsing_json(tree: ast.Module) -> Iterator[Use]:
    """Calls that parse JSON."""
    for node in nodes(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="json"), attr="load" | "loads" as name)):
                yield Use(node.lineno, f"json.{name}")
            case ast.ImportFrom(module="json", names=names):
                yield from (Use(node.lineno, f"json.{a.name}") for a in names if a.name in ("load", "loads"))


def future(tree: ast.Module) -> Iterator[Use]:
    """Imports from the future."""
    for node in nodes(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            yield Use(node.lineno, "__future__")


def compilers(tree: ast.Module) -> Iterator[Use]:
    """Imports of what compiles kernels, which not every system has."""
    for node in nodes(tree):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        yield from (Use(node.lineno, root) for name in names if (root := name.split(".")[0]) in COMPILERS)


def normalizing(tree: ast.Module) -> Iterator[Use]:
    """Uses of Python's Unicode normalization."""
    for node in nodes(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="unicodedata"), attr="normalize" | "is_normalized" as name):
                yield Use(node.lineno, name)
            case ast.ImportFrom(module="unicodedata", names=names):
                yield from (Use(node.lineno, a.name) for a in names if a.name in ("normalize", "is_normalized"))


DIFFERENT = frozenset({"os.rename", "os.replace", "os.fsync", "os.link", "shutil.rmtree"})
"""What every system has, and not every one does alike."""


def systems(tree: ast.Module) -> Iterator[Use]:
    """Names of the standard library that Windows or macOS lacks, or that do something else there."""
    lacking = {
        name if each == "*" else f"{name}.{each}"
        for system in ("win32", "darwin")
        for name, missing in absent(system).items()
        for each in missing
    }
    for node in nodes(tree):
        names: list[str] = []
        match node:
            case ast.Attribute(value=ast.Name(id=module), attr=name):
                names = [f"{module}.{name}"]
            case ast.ImportFrom(module=str(module)):
                names = [module, *(f"{module}.{a.name}" for a in node.names)]
            case ast.Import():
                names = [a.name for a in node.names]
        yield from (Use(node.lineno, name) for name in names if name in lacking | DIFFERENT)


FACTORIES = {
    *("arange", "as_tensor", "empty", "empty_strided", "eye", "full", "linspace", "logspace", "normal", "ones", "rand"),
    *("randint", "randn", "randperm", "scalar_tensor", "tensor", "tril_indices", "triu_indices", "zeros"),
}
OWNERS = {"Buffer", "Parameter", "register_buffer", "register_parameter"}
"""What a module owns lies on the default device, as in PyTorch's own modules."""


def placing(tree: ast.Module) -> Iterator[Use]:
    """Calls that make a tensor on the default device, which the user may have set to another one."""
    owned = {
        inner
        for node in nodes(tree)
        if isinstance(node, ast.Call)
        and (getattr(node.func, "attr", None) in OWNERS or getattr(node.func, "id", None) in OWNERS)
        for inner in ast.walk(node)
    }
    for node in nodes(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr=name)) if name in FACTORIES:
                # A dictionary of arguments, which has no name here, may hold the device.
                placed = {"device", "out", None} & {keyword.arg for keyword in node.keywords}
                if not placed and node not in owned:
                    yield Use(node.lineno, f"torch.{name}")


ERRORS = frozenset(
    name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)
)


def unhinted(tree: ast.Module) -> Iterator[Use]:
    """Errors of the package that do not say what to do."""
    for node in nodes(tree):
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=parts) if name in ERRORS:
                if any(isinstance(part, ast.Starred) for part in parts):
                    continue
                hint = parts[3] if len(parts) > 3 else None
                if hint is None or (isinstance(hint, ast.Constant) and not str(hint.value).strip()):
                    yield Use(node.lineno, name)


PREDICTORS = frozenset(name for _, name in CLASSES.values())


def predictors(tree: ast.Module) -> Iterator[Use]:
    """Imports of the trained models of a task."""
    for node in nodes(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("qkv.tasks"):
            yield from (Use(node.lineno, a.name) for a in node.names if a.name in PREDICTORS)


COMPILERS = frozenset({"numba", "triton", "llvmlite"})

RULES = {
    "running": Rule(
        "no file may choose code to run: read it as data",
        running,
        {
            "_lazy.py": frozenset({"import_module"}),  # modules that the packages list in their source
            "compiled/build.py": frozenset({"import_module"}),  # modules of the package that end in _kernel
        },
    ),
    "opening": Rule(
        "open files through `qkv.files`, which refuses pipes, devices, folders and links",
        opening,
        {
            "system.py": frozenset({"open", "mmap"}),  # the reader itself; new files and folders; no file, addresses
            "files.py": frozenset({"mmap"}),  # a handle of the reader
            "compiled/target.py": frozenset({"open"}),  # this machine's processor
            "checkpoint/disk.py": frozenset({"open"}),  # a handle of the reader
            "planner/costs.py": frozenset({"read_text"}),  # the package's own data, and the processor's name
            "linalg/heap.py": frozenset({"read_text"}),  # this process's own memory, of the system
            "view/bundle.py": frozenset({"read_text"}),  # the package's own data
            "view/showing.py": frozenset({"open"}),  # a browser
        },
    ),
    "parsing_json": Rule(
        "parse JSON by `qkv.strict_json`, which refuses keys that stand twice, NaN and deep nesting",
        parsing_json,
        {
            "compiled/library.py": frozenset({"json.loads"}),  # what the builder wrote into the library
            "data/tokenizer.py": frozenset({"json.loads"}),  # what the library says of itself
            "data/unigram.py": frozenset({"json.loads"}),
            "hub/families/save.py": frozenset({"json.loads"}),  # the header that safetensors just wrote
            "planner/costs.py": frozenset({"json.loads"}),  # a table of the package
            "strict_json.py": frozenset({"json.loads"}),
            "training/journal.py": frozenset({"json.loads"}),  # whether a line that was refused is whole
        },
    ),
    "future": Rule("Python 3.11 needs no import from the future", future),
    "systems": Rule(
        "leave what operating systems do differently to `qkv.system`",
        systems,
        {
            "system.py": DIFFERENT | {"os.ST_RDONLY", "os.geteuid", "os.statvfs", "fcntl", "resource"},
            "forks.py": frozenset({"os.register_at_fork"}),  # where it exists
            "compiled/thread_pool.py": frozenset({"os.register_at_fork"}),
        },
    ),
    "normalizing": Rule(
        "normalize by `qkv.data.normal_forms`: Python's own takes quadratic time for combining marks",
        normalizing,
        {"data/normal_forms.py": frozenset({"normalize"})},
    ),
    "placing": Rule(
        "pass device=: that of the tensors it meets, or cpu; without it torch.set_default_device decides",
        placing,
        {
            "nn/biases.py": frozenset({"torch.empty"}),  # a parameter, or a buffer
            "nn/normalizers.py": frozenset({"torch.full"}),  # what parameters start from
        },
    ),
    "unhinted": Rule("say as the fourth part of an error how to mend what was given", unhinted),
    "predictors": Rule(
        "only a task's own files name its classes: use a Protocol of `qkv.tasks.task`",
        predictors,
        {
            "tasks/load.py": PREDICTORS,  # overloads, for type checkers
            "tasks/train.py": PREDICTORS - {"MaskFiller"},
            "tasks/align/file_aligner.py": frozenset({"Translator"}),  # words are aligned by translators
            "tasks/demo.py": frozenset({"Translator"}),
            **{
                f"{module.rpartition('.')[0].removeprefix('qkv.').replace('.', '/')}/*.py": frozenset({name})
                for task, (module, name) in CLASSES.items()
                if task != "fill"
            },
        },
    ),
    "compilers": Rule(
        "only what builds kernels imports a compiler: everything else works without one",
        compilers,
        {
            "algorithms/additive/triton_kernels.py": COMPILERS,  # imported by the launch
            "compiled/codegen.py": COMPILERS,
            "compiled/compiler.py": COMPILERS,
            "compiled/dispatchers.py": COMPILERS,
            "compiled/entry.py": COMPILERS,
            "compiled/parallel_region.py": COMPILERS,
        },
    ),
}


def broken(source: Path) -> list[str]:
    """Every broken rule in the files of a folder."""
    files = sorted(source.rglob("*.py"))
    trees = {path.relative_to(source).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in files}
    try:
        return [line for rule in RULES.values() for line in rule.broken(trees)]
    finally:
        nodes.cache_clear()


if __name__ == "__main__":
    lines = broken(SOURCE)
    print(*lines, sep="\n") if lines else print(f"{len(RULES)} rules hold in every file of {SOURCE.name}")  # noqa: T201
    sys.exit(bool(lines))
