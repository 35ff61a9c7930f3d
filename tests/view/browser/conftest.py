import pytest
import torch

import qkv
from qkv.view.scene import Layer, Scene

_PATIENCE = 60_000
_WORDS = ("The", "little", "dog", "runs", "over", "the", "green", "meadow", "and", "the", "dog", ".")
_SOURCE = ("Der", "kleine", "Hund", "rennt", "zu", "Xaver", ".")


@pytest.fixture
def opened(browser):
    """Open an address with all other machines blocked; at the end no error or outside request may have occurred."""
    troubles, contexts = [], []

    def open_(url, **options):
        context = browser.new_context(**({"viewport": {"width": 1280, "height": 800}} | options))
        context.set_default_timeout(_PATIENCE)
        contexts.append(context)
        context.route("**/*", lambda route: _judged(route, url, troubles))
        page = context.new_page()
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("dialog", lambda dialog: troubles.append(dialog.message))
        page.goto(url)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert troubles == []


def _judged(route, url, troubles):
    """Allow requests to the page's own server; of a saved page, only the page itself."""
    asked, page = route.request.url, url.split("#")[0]
    saved = page.startswith("file:")
    home = asked.split("#")[0] == page if saved else asked.split("/", 3)[2:3] == page.split("/", 3)[2:3]
    allowed = home or asked.startswith("data:")
    if not allowed:
        troubles.append(asked)
    route.continue_() if allowed else route.abort()


@pytest.fixture(scope="session")
def served():
    """Serve scenes, one server each."""
    from qkv.view.server.serve import Serving

    running = {}

    def serve(scene):
        if id(scene) not in running:
            running[id(scene)] = (Serving(scene), scene)
        return running[id(scene)][0].url

    yield serve
    for serving, _ in running.values():
        serving.close()


@pytest.fixture(scope="session")
def scene():
    """Three layers of two heads: two with self-attention, one with cross-attention to a source."""
    return small(_WORDS, _SOURCE, {"source": ("",) * 5 + ("unknown", "")})


@pytest.fixture(scope="session")
def long_scene():
    """A map of several tiles and levels."""
    words = tuple(f"w{place}" for place in range(600))
    generator = torch.Generator().manual_seed(7)
    query, key, value = torch.randn(3, 1, 600, 4, generator=generator)
    return Scene("six hundred", {"text": words}, (Layer("only", "self", "text", "text", query, key, value),))


def small(words, source, notes=None):
    generator = torch.Generator().manual_seed(5)

    def layer(name, kind, keys, size, **options):
        query = 1.5 * torch.randn(2, len(words), 8, generator=generator)
        key, value = torch.randn(2, 2, size, 8, generator=generator)
        output = torch.randn(16, 16, generator=generator), None
        return Layer(name, kind, "text", keys, query, key, value, options, output=output)

    causal = qkv.masks.causal()
    layers = (
        layer("decoder.0", "self", "text", len(words), mask=causal),
        layer("decoder.1", "self", "text", len(words), mask=causal, normalizer=qkv.normalizers.Sparsemax()),
        layer("decoder.cross", "cross", "source", len(source), score=qkv.scores.Gaussian(bandwidth=2.0)),
    )
    return Scene("The little dog", {"text": words, "source": source}, layers, notes or {})


@pytest.fixture(scope="session")
def hostile_scene(hostile):
    return small(hostile[:90], hostile[90:205])
