"""A folder that the tests of a module share."""

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def shared_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared")
