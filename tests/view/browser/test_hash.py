"""The part of the address after #, which anyone can write into a link, in a real browser."""

import json
from urllib.parse import quote

import pytest
from tests.pairs import fast

_READY = {
    "steps": ".flow:not([aria-busy]) .step",
    "map": ".field-of-view canvas[data-state=exact]",
    "alignment": ".grid .map canvas",
    "graph": ".graph .node",
    "whatif": ".comparison .linked",
    "heads": ".gallery .head",
}
_NAMES = (
    *("view", "layer", "head", "quantity", "how", "colors", "log", "query", "key"),
    *("at", "only", "way", "follow", "links", "top", "frontier", "before", "after", "__proto__", "constructor"),
)
_VALUES = (
    *("constructor", "__proto__", "toString", "hasOwnProperty", "valueOf", "length"),
    *(
        "mean",
        "",
        " ",
        "NaN",
        "Infinity",
        "-1",
        "1e999",
        "-1e999",
        "1.5",
        "0x1",
        "99999999999999999999",
        "null",
        "undefined",
    ),
    *("1_1_1e999", "NaN_NaN_5", "1e308_1e308_1e308", "_", "<img src=x onerror=pwned=1>", "\0", "%", "\ud7ff" * 3000),
    *(json.dumps(each) for each in (None, [], [1], 5, "x", {"vector": {"length": 8}}, {"vector": "12345678"})),
    *(json.dumps(each) for each in ({"score": 5}, {"mask": None}, {"score": {"name": "constructor", "parameters": 5}})),
    *('{"__proto__": {"score": 5}}', '{"temperature": "x"}', '{"temperature": null}', '{"normalizer": [[]]}', "{"),
)
_BLANK = """
async (hashes) => {
  const blank = [];
  for (const hash of hashes) {
    location.hash = hash;
    await new Promise((done) => setTimeout(done));
    const home = document.querySelector('.home');
    if (home.innerText.trim().length < 20 && !home.querySelector('canvas')) blank.push(hash);
  }
  return blank;
}
"""


def hashes(view, names, values):
    """Every name with every value; what names another view is that view's."""
    pairs = [(name, value) for name in names for value in values if name != "view" or value not in _READY]
    return [f"view={view}&{name}={quote(value, errors='replace')}" for name, value in pairs]


@pytest.mark.parametrize(
    ("groups", "values"),
    [
        pytest.param([_NAMES[:1], _NAMES[1:]], _VALUES[:2], id="few"),
        pytest.param([[name] for name in _NAMES], _VALUES, id="all", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("view", fast(_READY, "whatif"))
def test_nothing_in_the_address_blanks_the_page(view, groups, values, opened, served, scene):
    """The view is there all the time and at the end, the page throws no error, and no request is refused.

    It is waited for after each group of names, always after those that name another view.
    """
    page = opened(f"{served(scene)}#view={view}")
    page.wait_for_selector(_READY[view])
    for names in groups:
        assert page.evaluate(_BLANK, hashes(view, names, values)) == []
        page.evaluate("(hash) => { location.hash = hash; }", f"view={view}")
        page.wait_for_selector(_READY[view])
