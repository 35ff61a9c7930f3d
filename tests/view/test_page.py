import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import numpy as np
import torch

from qkv.view.alignment import Alignment
from qkv.view.export import html
from qkv.view.tokens import labels


class Parsed(HTMLParser):
    """The page as a browser tokenizes it: whole scripts and styles, and every attribute."""

    def __init__(self, page):
        super().__init__()
        self.inside, self.texts, self.attributes = None, {}, []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, name, value) for name, value in attrs]
        self.inside = f"{tag} {dict(attrs).get('type', '')}".strip()
        self.texts.setdefault(self.inside, "")

    def handle_endtag(self, tag):
        self.inside = None

    def handle_data(self, data):
        if self.inside:
            self.texts[self.inside] += data


def digest(text):
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def policy(page):
    content = next(
        value for tag, name, value in page.attributes if (tag, name) == ("meta", "content") and "src" in value
    )
    return dict(rule.split(" ", 1) for rule in content.split("; "))


def test_the_policy_allows_this_script_and_style_and_nothing_else(words):
    page = Parsed(html([words]))
    rules = policy(page)
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert rules["script-src"] == digest(page.texts["script module"])
    assert rules["style-src"] == digest(page.texts["style"])
    assert not any("unsafe" in rule for rule in rules.values())


def test_nothing_in_the_page_points_outside(words):
    page = Parsed(html([words]))
    assert not any(
        name in {"src", "href", "srcset", "action", "style"} or name.startswith("on") for _, name, _ in page.attributes
    )
    assert "@import" not in page.texts["style"]
    assert "url(" not in page.texts["style"]
    assert not re.search(
        r"\b(fetch|XMLHttpRequest|WebSocket|innerHTML|eval|localStorage|document\.write)\b", page.texts["script module"]
    )


def test_the_data_come_back_as_they_were(words, date):
    data = json.loads(Parsed(html([words, date])).texts["script application/json"])
    for alignment, described in zip((words, date), data["sentences"], strict=True):
        assert described["source"] == list(labels(alignment.source))
        assert described["scale"] == list(alignment.scale)
        weights = np.frombuffer(base64.b64decode(described["weights"]), "<f4").reshape(alignment.weights.shape)
        assert np.array_equal(weights, alignment.weights.float().numpy())


def test_hostile_tokens_stay_inside_the_data(hostile, words):
    count = len(hostile)
    page = html([Alignment(hostile, hostile, torch.eye(count))])
    parsed = Parsed(page)
    assert json.loads(parsed.texts["script application/json"])["sentences"][0]["target"] == list(labels(hostile))
    assert len(parsed.attributes) == len(Parsed(html([words])).attributes)
    assert parsed.texts["script module"] == Parsed(html([words])).texts["script module"]


def test_the_script_is_one_piece_without_imports(words):
    script = Parsed(html([words])).texts["script module"]
    assert not re.search(r"^\s*(import|export)\b", script, re.MULTILINE)


def test_a_page_without_sentences_and_empty_sentences_are_pages():
    assert '"sentences":[]' in html([])
    assert html([Alignment((), ("x",), torch.zeros(1, 0)), Alignment((), (), torch.zeros(0, 0))])
