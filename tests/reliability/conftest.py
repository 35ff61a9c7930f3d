"""The files that every family trains on."""

from pathlib import Path

import pytest
from tests.reliability.families import write_data


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))
