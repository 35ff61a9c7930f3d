"""The rules of the source see what they watch, and tell of rows that nothing needs."""

import ast

import pytest
from tests.source_rules import RULES, SOURCE, Rule, broken

SEEN = {
    "running": (
        *("import pickle", "from pickle import loads", "import yaml.loader", "from torch import load", "torch.load(x)"),
        *("eval(text)", "exec(text)", "__import__(name)", "numpy.load(x)", "os.system(x)", "run(x, shell=True)"),
        *("importlib.import_module(name)", 'import_module("pickle")', 'import_module("qkv." + name)'),
        *(
            'import_module(f"qkv.{name}")',
            'import_module("qkv.scores")',
            "from torch.hub import load",
            "f(trust_remote_code=True)",
        ),
        *("import joblib", "import marshal", "np.load(x)", "f(allow_pickle=True)", "f(weights_only=False)"),
    ),
    "opening": (
        *("open(x)", "x.open()", "os.open(x, 0)", "gzip.open(x)", "x.read_text()", "from safetensors import safe_open"),
        "from qkv.files import open\nopen(x)",
    ),
    "parsing_json": ("json.loads(x)", "json.load(x)", "from json import loads"),
    "systems": (
        *("os.fork()", "os.open(x, os.O_NOFOLLOW)", "from os import fchmod", "import fcntl", "from resource import x"),
        *("signal.SIGKILL", "os.sched_getaffinity(0)", "import termios", "import pwd", "os.geteuid()", "time.tzset()"),
        *("os.rename(x, y)", "shutil.rmtree(x)", "signal.SIGWINCH", "os.O_CLOEXEC", "from os import fsync"),
    ),
    "future": ("from __future__ import annotations",),
    "normalizing": ("from unicodedata import normalize", "unicodedata.normalize(x, y)", "unicodedata.is_normalized(x)"),
    "placing": (
        *("torch.zeros(2)", "torch.arange(0, x, 2, dtype=y)", "f(torch.tensor([1.0]))", "torch.full((), x).to(y)"),
        "Parameter(x) + torch.ones(2)",
    ),
    "unhinted": (
        *('DataError("a", "b", "c")', 'errors.ConfigError("a", "b", "c", "")', 'ShapeError("a", "b", f"{c}", " ")'),
        "QkvError()",
    ),
    "predictors": ("from qkv.tasks.translate.predict import Translator", "from qkv.tasks.fill import T, MaskFiller"),
    "compilers": ("import numba", "from numba import njit", "import triton.language as tl", "from llvmlite import ir"),
}
PASSED = {
    "running": ("import code_points", "x.eval()"),
    "opening": ("from qkv.data.text import open\nopen(x)", "opened(x)"),
    "parsing_json": ("json.dumps(x)", "parse_json(x)", "torch.load(x)"),
    "systems": ("os.open(x, os.O_RDONLY)", "signal.SIGINT", "x.rename(y)", "import stat"),
    "future": ("import future",),
    "normalizing": ("normalize(x, y)", "from unicodedata import category", "functional.normalize(x)"),
    "placing": (
        *('torch.zeros(2, device="cpu")', "torch.ones(2, **options)", "torch.randn(2, out=x)", "x.new_zeros(2)"),
        *("nn.Parameter(torch.empty(2))", 'self.register_buffer("x", torch.zeros(2))', "np.zeros(2)"),
        "torch.zeros_like(x)",
    ),
    "unhinted": (
        'DataError("a", "b", "c", "d")',
        "DataError(*parts)",
        'MaskError("a", "b", "c", hint)',
        "ValueError()",
    ),
    "predictors": ("from qkv.tasks.translate.predict import Translation", "from qkv import Translator"),
    "compilers": ("import numbatic", "from qkv.numba import x"),
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in SEEN.items() for text in texts])
def test_a_rule_sees(name: str, text: str) -> None:
    (line, *_) = RULES[name].broken({"scores/new.py": ast.parse(text)})
    assert line.startswith("scores/new.py:")
    assert line.endswith(RULES[name].advice)


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in PASSED.items() for text in texts])
def test_a_rule_passes(name: str, text: str) -> None:
    assert not list(RULES[name].uses(ast.parse(text)))


def test_every_rule_is_tried() -> None:
    assert set(SEEN) == set(PASSED) == set(RULES)


def test_a_row_allows_its_file_alone_and_is_reported_where_nothing_needs_it() -> None:
    rule = Rule("advice", RULES["opening"].uses, {"files.py": frozenset({"open"})})
    tree = ast.parse("open(x)")
    assert list(rule.broken({"files.py": tree})) == []
    assert len(list(rule.broken({"other.py": tree}))) == 2


@pytest.mark.slow
def test_the_rules_hold() -> None:
    """Checked by `make check` too, where the fast suite leaves it."""
    assert broken(SOURCE) == []
