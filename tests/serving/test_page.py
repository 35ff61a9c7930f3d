"""The commands of the page, as a user types them."""

import json
import shlex
import shutil
import subprocess

import httpx
import pytest
from tests.docs.examples import ROOT, blocks
from tests.serving.conftest import TOKEN


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_requests_of_the_page_are_answered(server: httpx.Client) -> None:
    texts = [block.text for block in blocks(ROOT / "docs" / "how_to" / "serve.md", "sh") if "curl" in block.text]
    plain, streamed = (
        subprocess.run(
            [
                *shlex.split(
                    text.replace("\\\n", " ").replace("http://127.0.0.1:8000", str(server.base_url).rstrip("/"))
                ),
                *("-H", f"authorization: Bearer {TOKEN}"),
            ],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for text in (texts[0], texts[1].replace("plays", "language").replace("KING:", "the cat"))
    )
    (answer,) = json.loads(plain)["answers"]
    assert answer["translations"][0]["text"] == "The old woman has seen a small dog ."
    assert streamed.endswith("data: [DONE]\n\n")
