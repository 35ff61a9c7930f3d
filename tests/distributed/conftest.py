"""The processes that the tests of this folder share."""

from collections.abc import Iterator

import pytest
from tests.distributed.group import Processes


@pytest.fixture(scope="session")
def processes() -> Iterator[Processes]:
    started = Processes(4)
    yield started
    started.close()


@pytest.fixture(scope="session")
def eight_processes() -> Iterator[Processes]:
    started = Processes(8)
    yield started
    started.close()
