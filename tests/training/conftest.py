"""The folder that the tests of a module share."""

from tests.checkpoint.conftest import shared_path

__all__ = ["shared_path"]
