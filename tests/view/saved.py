"""Reading what a saved page holds."""

import base64
import json
import re
import zlib
from typing import Any


def content(text: str) -> Any:
    """The data of a page."""
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert data is not None
    return json.loads(data[1])


def answers(text: str) -> Any:
    """The answers of a saved page that it does not compute, by their addresses."""
    return json.loads(zlib.decompress(base64.b64decode(content(text)["answers"]), -15))
