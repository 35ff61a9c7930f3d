"""Alignments as one self-contained HTML page that needs no network and trusts no token."""

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from importlib.resources import files
from string import Template

import torch

from qkv.view.alignment import Alignment
from qkv.view.colors import RAMP
from qkv.view.tokens import label, sentence

_MODULES = ("dom.js", "sentence.js", "colors.js", "heatmap.js", "links.js", "list.js", "app.js")
_IMPORT = re.compile(r'^import (\{[^}]*\}) from "\./([^"]+)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:function|const) (\w+))", re.MULTILINE)


def html(alignments: Sequence[Alignment]) -> str:
    """Build a page that shows alignments: links between the tokens, a heat map, and a list of the sentences.

    The page is one file that works from disk. Its content security policy allows its own script and style, by their
    hashes, and nothing else: no network, no other script, no markup made from strings. It follows the reader's dark
    mode, and arrow keys walk the cells.

    Args:
        alignments: the sentences in the order of the list; there may be none.

    Returns:
        The page. Weights are in it as float32.

    Example:
        >>> import torch
        >>> page = html([Alignment(("ein", "</script>"), ("a", "dog"), torch.eye(2))])
        >>> page.count("</script>"), "unsafe-inline" in page
        (2, False)
    """
    style, script = _static("page.css"), "const modules = {};\n" + "".join(map(_inlined, _MODULES))
    return Template(_static("page.html")).substitute(
        policy=_policy(script, style), style=style, script=script, data=_data(alignments)
    )


def _static(name: str) -> str:
    return (files("qkv.view") / "static" / name).read_text(encoding="utf-8")


def _inlined(name: str) -> str:
    """Turn a module into a function's scope: an inline script has no files to import from."""
    module = _static(name)
    names = ", ".join(_EXPORT.findall(module))
    body = _IMPORT.sub(r'const \1 = modules["\2"];', _EXPORT.sub("", module))
    return f'modules["{name}"] = (() => {{\n{body}return {{ {names} }};\n}})();\n'


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


def _data(alignments: Sequence[Alignment]) -> str:
    content = {"ramp": RAMP, "sentences": [_described(alignment) for alignment in alignments]}
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=True)
    # Inside <script> nothing is an entity: only what could end the element or open a comment must go.
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _described(alignment: Alignment) -> dict[str, object]:
    weights = alignment.weights.to(torch.float32).numpy().astype("<f4")
    return {
        "source": [label(token) for token in alignment.source],
        "target": [label(token) for token in alignment.target],
        "from": sentence(alignment.source),
        "to": sentence(alignment.target),
        "scale": alignment.scale,
        "weights": base64.b64encode(weights.tobytes()).decode(),
    }
