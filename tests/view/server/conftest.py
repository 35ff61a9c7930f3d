import httpx
import pytest
import torch

import qkv
from qkv.view.scene import Layer, Scene
from qkv.view.server.serve import Serving

LENGTH = 900


@pytest.fixture(scope="session")
def scene(hostile):
    """Self-attention over every hostile token, and a layer long enough to have levels."""
    generator = torch.Generator().manual_seed(2)
    few = torch.randn(3, 2, len(hostile), 8, generator=generator)
    many = torch.randn(3, 2, LENGTH, 8, generator=generator)
    layers = (
        Layer("</script><b>", "self", "<img src=x onerror=pwned=1>", "<img src=x onerror=pwned=1>", *few),
        Layer("long", "self", "long", "long", *many, {"mask": qkv.masks.causal()}),
    )
    tokens = {"<img src=x onerror=pwned=1>": hostile, "long": tuple(f"t{place}" for place in range(LENGTH))}
    return Scene("</title><script>pwned=1</script>", tokens, layers)


@pytest.fixture(scope="session")
def serving(scene):
    """The running server."""
    with Serving(scene) as running:
        yield running


@pytest.fixture(scope="session")
def client(serving):
    """A browser's HTTP client, with the token."""
    with httpx.Client(base_url=serving.url, timeout=60) as http:
        yield http
