"""The site's own code: generated pages are complete, links are rewritten and checked, every page is in the contents."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"site_{name}", DOCS / "_site" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reference")
    load("reference").write(folder)
    return folder


def test_every_public_name_has_a_page(reference: Path) -> None:
    import qkv

    text = "\n".join(page.read_text(encoding="utf-8") for page in (reference / "api").glob("*.md"))
    for name in (*qkv.__all__, *qkv.scores.__all__, *qkv.normalizers.__all__, *qkv.masks.__all__):
        assert name.startswith("__") or f".{name}" in text, name


@pytest.mark.parametrize("name", load("mechanisms").TABLES)
def test_a_table_of_mechanisms_is_as_its_script_writes_it(name: str) -> None:
    site = load("mechanisms")
    text = (DOCS / site.TABLES[name][0]).read_text(encoding="utf-8")
    assert text == site.written(name, text), "run: python docs/_site/mechanisms.py"


def test_every_command_and_flag_is_on_the_page(reference: Path) -> None:
    text = (reference / "command_line.md").read_text(encoding="utf-8")
    for command in ("demo", "train translate", "train regress", "translate", "view", "explain"):
        assert f"\n## qkv {command}\n" in text
    assert "`--score`" in text
    assert "`--beam`" in text


def test_every_setting_has_a_meaning(reference: Path) -> None:
    rows = [line for line in (reference / "settings.md").read_text(encoding="utf-8").splitlines() if line[:3] == "| `"]
    assert len(rows) > 100
    assert not [row for row in rows if not row.split(" | ")[1].strip()]


def test_what_help_says_in_angle_brackets_is_shown(reference: Path) -> None:
    for name in ("settings", "command_line"):
        text = (reference / f"{name}.md").read_text(encoding="utf-8")
        cells = [line for line in text.splitlines() if line.startswith("| ")]
        assert any("TAB>" in line for line in cells), name
        assert not [line for line in cells if re.search(r"(?<!\\)<[A-Za-z]", re.sub(r"`[^`]*`", "", line))], name


def test_every_page_is_in_the_contents() -> None:
    listed: set[str] = set()
    for page in (DOCS / "index.md", DOCS / "understanding" / "mechanisms" / "README.md"):
        for block in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL):
            names = [line for line in block.splitlines() if line and not line.startswith(":")]
            listed |= {(page.parent / name).relative_to(DOCS).as_posix() for name in names}
    pages = {page.relative_to(DOCS).with_suffix("").as_posix() for page in DOCS.rglob("*.md")} - {"index"}
    generated = {"reference/api/index", "reference/command_line", "reference/settings"}
    assert listed == pages | generated | {"project/security", "project/changelog", "project/contributing"}


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.stem)
def test_code_fits_the_width_of_a_page(page: Path) -> None:
    blocks = re.findall(r"```(?:python|\{code-cell\}[^\n]*)\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    shown = [re.sub(r"\A(:[a-z]+:.*\n)+", "", block) for block in blocks]  # without the options of a cell
    assert not [line for block in shown for line in block.splitlines() if len(line) > 88]


def test_links_into_the_repository_lead_there() -> None:
    rewrite = load("extension").repository_links
    page = "how_to/train.md"
    assert rewrite("[a](../../src/a.py)", page, "https://qkv.org") == "[a](https://qkv.org/blob/main/src/a.py)"
    assert rewrite("[a](../../src/a.py), [b](../../b.md)", page, "https://qkv.invalid") == "a, b"
    assert rewrite("[a](../../SECURITY.md#x)", "how_to/train.md") == "[a](../project/security.md#x)"
    for same in ("[a](view.md)", "[a](../project/results.md#b)", "[a](https://x.org/y)", "[a](#b)"):
        assert rewrite(same, "how_to/train.md") == same
    assert rewrite("![a](../../benchmarks/results/a.svg)", "project/results.md").startswith("![a](../..")


def test_words_of_docstrings_are_no_markup() -> None:
    plain = load("extension").plain_docstring
    assert plain(["|q| at FILE:LINE"]) == ["\\|q\\| at FILE\\:LINE"]
    same = [">>> place", "('a:3', 2 * 3)", "", "Args:", "    mask: see https://pytorch.org"]
    assert plain(same) == same
    assert plain(["`a*b|c:d`"]) == ["``a*b|c:d``"]


def test_broken_links_and_outside_requests_are_seen(tmp_path: Path) -> None:
    check = load("links").check
    (tmp_path / "a.html").write_text(
        '<p id="here"><a href="#here">x</a><a href="b.html#there">x</a><a href="https://x.org">x</a></p>', "utf-8"
    )
    (tmp_path / "b.html").write_text('<p id="there"></p>', "utf-8")
    assert check(tmp_path) == []
    (tmp_path / "c.html").write_text(
        '<a href="none.html">x</a><a href="b.html#no">x</a><script src="https://cdn.org/m.js"></script>', "utf-8"
    )
    (tmp_path / "d.css").write_text("p { background: url(https://x.org/y.png) }", "utf-8")
    assert len(check(tmp_path)) == 4
    (tmp_path / "a.png").touch()
    (tmp_path / "e.html").write_text(
        '<img alt="a map" src="a.png"><img alt="./a.png" src="a.png"><img src="a.png">', "utf-8"
    )
    assert len(check(tmp_path)) == 6


def test_arguments_of_another_function_are_one_sentence() -> None:
    plain = load("extension").plain_docstring
    lines = [
        "Do it.",
        "",
        "Args:",
        "    query: (Q, D).",
        "    key, mask, bias: as for `qkv.attention`.",
        "    state: its state.",
    ]
    shown = plain([*lines, "", "Returns:", "    The map."])
    assert shown[2] == "``key``, ``mask``, ``bias``: as for ``qkv.attention``."
    assert shown[4:7] == ["Args:", "    query: (Q, D).", "    state: its state."]
    assert plain(["Args:", "    key: as `attention`."]) == ["Args:", "    key: as ``attention``."]
