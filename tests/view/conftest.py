import shutil

import pytest
import torch

from qkv.view.alignment import Alignment

_PLAIN = (
    "</script><script>pwned=1</script>",
    "<!--<script>",
    "]]>",
    "<img src=x onerror=pwned=1>",
    "<svg onload=pwned=1>",
    '" onmouseover="pwned=1" x="',
    "' onfocus='pwned=1' autofocus x='",
    "javascript:pwned=1",
    "</style><style>*{display:none}",
    "</title><base href=//evil.example>",
    "<meta http-equiv=refresh content=0;url=//evil.example>",
    "<iframe srcdoc='<script>parent.pwned=1</script>'>",
    "{{constructor.constructor('pwned=1')()}}",
    "${pwned=1}",
    "$policy $script $$",
    "\\u003cscript\\u003e",
    "__proto__",
    "constructor",
    "&lt;b&gt;&amp;",
    "$\\frac{1}{0}$",
    "_hidden",
    "[bold red]x[/]",
    "a--b-->",
    "<?php pwned ?>",
    "",
    " ",
    "\n",
    "\t",
    "\r\n",
    "\x00",
    "\x1b[31m\x1b]0;title\x07",
    "\x7f\x85\x9b31m",
    "\u2028\u2029",
    "\u202egnp.exe",
    "\u2066\u2067\u2068\u2069\u200e\u200f\u061c",
    "\u200b\u200c\u200d\ufeff\u2060",
    "\u0301",
    "Z\u0300\u0301\u0302\u0303\u0304\u0305\u0306\u0307\u0308\u0309\u030a\u030b\u030c",
    "\ud800",
    "\udfff\ud800",
    "\ufffe\uffff\ufdd0",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    "שלום",
    "مرحبا",
    "中文",
    "e\u0301te\u0301",
    "\u3164\u115f\u2800",
    "x" * 3000,
)
_FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage")
HOSTILE = (
    _PLAIN
    + tuple(
        f"{before}{token}{after}"
        for token in _PLAIN[:24]
        for before, after in (("<", ">"), ('">', ""), ("\u202e", "\x1b"), ("</", "script>"), ("▁", "\n"), ("'", "`"))
    )
    + tuple(
        f"<{tag} {event}=pwned=1>" for tag in ("body", "input", "video") for event in ("onload", "onfocus", "onerror")
    )
)


@pytest.fixture(scope="session")
def hostile():
    """Two hundred tokens that try to be more than text."""
    assert len(HOSTILE) >= 200
    return HOSTILE


@pytest.fixture(scope="session")
def words():
    """A sentence of words, all weights different."""
    generator = torch.Generator().manual_seed(3)
    source = ("Zwei", "junge", "weiße", "Männer", "sind", "im", "Freien", ".")
    target = ("Two", "young", ",", "White", "males", "are", "outside", ".")
    return Alignment(source, target, torch.rand(8, 8, generator=generator).softmax(-1))


@pytest.fixture(scope="session")
def date():
    """A date, character by character."""
    generator = torch.Generator().manual_seed(4)
    source, target = tuple("Tue, 3rd of May 2011"), tuple("2011-05-03")
    return Alignment(source, target, (6 * torch.rand(10, 20, generator=generator)).softmax(-1))


@pytest.fixture(scope="session")
def browser():
    """Debian's Chromium or another; skips if there is none."""
    playwright = pytest.importorskip("playwright.sync_api")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("no chromium here")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=[*_FLAGS], timeout=120_000)
        yield browser
        browser.close()
