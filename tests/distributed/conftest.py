"""The groups of processes that the tests of this folder share."""

from collections.abc import Iterator

import pytest
from tests.distributed.group import Group, groups as started


@pytest.fixture(scope="session")
def groups() -> Iterator[dict[int, Group]]:
    with started() as by_size:
        yield by_size
