"""The folders in memory of the checkpoints' tests."""

from tests.checkpoint.conftest import shared_path, tmp_path

__all__ = ["shared_path", "tmp_path"]
