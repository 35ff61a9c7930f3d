"""The front end as one self-contained file, or as a page that links to files on a server."""

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from qkv.errors import ConfigError
from qkv.normalizers.catalog import NORMALIZERS
from qkv.scores.catalog import SCORES
from qkv.values.catalog import Catalog
from qkv.view.answers.answer import as_json_numbers
from qkv.view.colors import RAMPS

STYLES = ("page.css", "alignment.css", "views.css")
FORMULAS = "formulas.js"
"""The module of formulas, which is made of the catalogs of scores and normalizers."""
_IMPORT = re.compile(r'^import (\{[^}]*\}) from "\./([^"]+)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async function|function|const) (\w+))", re.MULTILINE)


def one_file(entry: str, content: Mapping[str, object]) -> str:
    """Build a page that works from disk and makes no requests.

    Its content security policy allows its own script and style, by their hashes, and nothing else: no network, no other
    script, no markup built from strings.

    Args:
        entry: the entry module: `sentences.js` for alignments, `saved.js` for a scene, `play.js` for a model.
        content: the page's data, as JSON.

    Returns:
        The page.

    Example:
        >>> page = one_file("sentences.js", {"sentences": ["</script>"]})
        >>> page.count("</script>"), "unsafe-inline" in page, "fetch" in page
        (2, False, False)
    """
    more = (entry.replace(".js", ".css"),) if entry == "play.js" else ()
    style = _without_comments("".join(map(static, (*STYLES, *more))))
    script = script_of(entry)
    return _filled(
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(script, style)}">',
        f"<style>{style}</style>",
        content,
        f'<script type="module">{script}</script>',
    )


def script_of(entry: str) -> str:
    """Return a module with everything that it imports as one script; `modules[entry]` has what it exports."""
    return "const modules = {};\n" + "".join(map(_inlined, _modules(entry)))


def compressed(page: str) -> str:
    """Return a page that unpacks a page of `one_file` and becomes it, for places where every byte counts.

    Args:
        page: the page.

    Returns:
        The page, in a third of the bytes or less, with the same scripts allowed and a few lines that unpack it.

    Example:
        >>> page = one_file("sentences.js", {"sentences": []})
        >>> len(compressed(page)) < 0.5 * len(page)
        True
    """
    match = re.search("style-src ('sha256-[^']*')", page)
    allowed = re.search("script-src ('sha256-[^']*')", page)
    if match is None or allowed is None:
        raise ConfigError("page", "a page of `one_file`", "another one", "Give it unchanged.")
    rules = {"default-src": "'none'", "style-src": match[1], "script-src": f"{_digest(_UNPACK)} {allowed[1]}"}
    policy = "; ".join(f"{name} {value}" for name, value in rules.items())
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = base64.b64encode(packer.compress(page.encode()) + packer.flush()).decode()
    head = f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
    data = f'<script type="application/octet-stream" id="packed">{packed}</script>'
    return f"<!doctype html>{head}{data}<script>{_UNPACK}</script>"


def framed(page: str, title: str, height: int = 640) -> str:
    """Return a page of `one_file` in a frame for a notebook, compressed; its height in pixels."""
    frame = f'sandbox="allow-scripts" width="100%" height="{height}" style="border:0"'
    return (
        f'<iframe title="{escape(title, quote=True)}" {frame} srcdoc="{escape(compressed(page), quote=True)}"></iframe>'
    )


_UNPACK = (
    "const bytes=Uint8Array.from(atob(document.getElementById('packed').textContent),c=>c.charCodeAt(0));"
    "new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream('deflate-raw'))).text()"
    ".then(page=>{document.open();document.write(page);document.close()})"
)


def linked(content: Mapping[str, object]) -> str:
    """Build the page for a server, which serves its files as `static/NAME` and sends its policy.

    Args:
        content: the page's initial data, as JSON.

    Returns:
        The page.
    """
    icon = '<link rel="icon" href="data:,">'  # or browsers request one that does not exist
    style = "".join(f'<link rel="stylesheet" href="static/{name}">' for name in STYLES)
    return _filled("", icon + style, content, '<script type="module" src="static/live.js"></script>')


def names() -> tuple[str, ...]:
    """List all files that the server's page links to or imports.

    Example:
        >>> {"page.css", "live.js"} <= set(names()), "saved.js" in names()
        (True, False)
    """
    return (*STYLES, *_modules("live.js"))


def static(name: str) -> str:
    """Read a file of the front end.

    Args:
        name: one of `names()`, or another file in their folder; never input from a request.
    """
    return _formulas() if name == FORMULAS else (files("qkv.view") / "static" / name).read_text(encoding="utf-8")


def _formulas() -> str:
    """Write the catalogs as a module: of each entry its formula, and what a page says of it and lets people set."""
    shared = ", ".join(name for name in _EXPORT.findall(static("numeric.js")))
    return f"""// Scores and normalizers, by the catalogs of `qkv.scores` and `qkv.normalizers`.

import {{ {shared} }} from "./numeric.js";

export const SCORES = {{
{_entries(SCORES)}
}};
export const NORMALIZERS = {{
{_entries(NORMALIZERS)}
}};
"""


def _entries(catalog: Catalog[Any]) -> str:
    return ",\n".join(
        f"  {name}: {{ positive: {_json(getattr(entry.cls, 'non_negative', False))}, "
        f"offered: {_json(entry.only_numbers)}, equation: {_json(entry.equation.plain)}, "
        f"numbers: {_json([number._asdict() for number in entry.numbers])}, formula: {entry.javascript} }}"
        for name, entry in catalog.items()
    )


def _modules(entry: str) -> tuple[str, ...]:
    """Order a module after everything it imports, each once."""

    def walk(name: str) -> Iterator[str]:
        for _, needed in _IMPORT.findall(static(name)):
            yield from walk(needed)
        yield name

    return tuple(dict.fromkeys(walk(entry)))


def _inlined(name: str) -> str:
    """Wrap a module in a function: an inline script cannot import files."""
    module = _without_comments(static(name))
    exported = ", ".join(_EXPORT.findall(module))
    body = _IMPORT.sub(r'const \1 = modules["\2"];', _EXPORT.sub("", module))
    return f'modules["{name}"] = (() => {{\n{body}return {{ {exported} }};\n}})();\n'


def _without_comments(text: str) -> str:
    """Return a script or a style without comments that have lines of their own, and without indentation. No text in
    these files spans lines, and no line of code starts with an asterisk: a test sees to that.
    """
    text = re.sub(r"^\s*/\*\*(?:(?!\*/).)*\*/\s*\n", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^\s*//.*\n", "", text, flags=re.MULTILINE)
    return re.sub(r"\n\s+", "\n", text).lstrip()


def _policy(script: str, style: str) -> str:
    rules = {
        "default-src": "'none'",
        "script-src": _digest(script),
        "style-src": _digest(style),
        "base-uri": "'none'",
        "form-action": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _filled(policy: str, style: str, content: Mapping[str, object], script: str) -> str:
    return Template(static("page.html")).substitute(
        policy=policy, style=style, data=_json({**content, "ramps": RAMPS}), script=script
    )


def _json(content: object) -> str:
    text = json.dumps(as_json_numbers(content), separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    # Inside <script> there are no entities: escape only what could end the element or start a comment.
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
