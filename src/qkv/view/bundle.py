"""The front end as one self-contained file, or as a page that links to files on a server."""

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from string import Template

from qkv.view.colors import RAMPS

STYLES = ("page.css", "alignment.css", "views.css")
_IMPORT = re.compile(r'^import (\{[^}]*\}) from "\./([^"]+)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async function|function|const) (\w+))", re.MULTILINE)


def one_file(entry: str, content: Mapping[str, object]) -> str:
    """Build a page that works from disk and makes no requests.

    Its content security policy allows its own script and style, by their hashes, and nothing else: no network, no other
    script, no markup built from strings.

    Args:
        entry: the entry module: `sentences.js` for alignments, `saved.js` for a scene.
        content: the page's data, as JSON.

    Returns:
        The page.

    Example:
        >>> page = one_file("sentences.js", {"sentences": ["</script>"]})
        >>> page.count("</script>"), "unsafe-inline" in page, "fetch" in page
        (2, False, False)
    """
    style = "".join(map(static, STYLES))
    script = "const modules = {};\n" + "".join(map(_inlined, _modules(entry)))
    return _filled(
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(script, style)}">',
        f"<style>{style}</style>",
        content,
        f'<script type="module">{script}</script>',
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
    return (files("qkv.view") / "static" / name).read_text(encoding="utf-8")


def _modules(entry: str) -> tuple[str, ...]:
    """Order a module after everything it imports, each once."""

    def walk(name: str) -> Iterator[str]:
        for _, needed in _IMPORT.findall(static(name)):
            yield from walk(needed)
        yield name

    return tuple(dict.fromkeys(walk(entry)))


def _inlined(name: str) -> str:
    """Wrap a module in a function: an inline script cannot import files."""
    module = static(name)
    exported = ", ".join(_EXPORT.findall(module))
    body = _IMPORT.sub(r'const \1 = modules["\2"];', _EXPORT.sub("", module))
    return f'modules["{name}"] = (() => {{\n{body}return {{ {exported} }};\n}})();\n'


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
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=True)
    # Inside <script> there are no entities: escape only what could end the element or start a comment.
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
