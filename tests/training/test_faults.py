import pytest
import torch

from qkv.errors import TrainingError
from qkv.training.faults import show_lines, suggest_smaller_batches


@pytest.mark.parametrize(
    ("lines", "text"),
    [([17], "line 17"), ([3, 1, 2], "lines 1-3"), ([5, 5], "line 5"), ([9, 4, 5, 7], "lines 4-5, 7, 9")],
)
def test_lines_are_written_briefly(lines, text):
    assert show_lines(lines) == text


def test_very_many_lines_are_cut():
    text = show_lines(range(0, 2000, 2))
    assert text.endswith("78 and more, 1,000 in all")


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory.\nmore")])
def test_exhausted_memory_is_a_typed_error(error):
    with pytest.raises(TrainingError, match="Lower batch_tokens"), suggest_smaller_batches(1, 4096):
        raise error
