"""The in-memory folders of the checkpoint tests."""

from tests.checkpoint.conftest import shared_path, tmp_path

__all__ = ["shared_path", "tmp_path"]
