"""The center of keys."""

import pytest
import torch

from qkv.linalg.centering import center, median_key


@pytest.mark.parametrize("keys", [1, 2, 5, 64])
@pytest.mark.parametrize("leading", [(), (2,), (2, 3)])
def test_the_center_of_one_key_that_is_expanded_is_that_key(leading: tuple[int, ...], keys: int) -> None:
    """Many times, as memory that nothing wrote may hold the right numbers by chance."""
    query = torch.randn(*leading, 7, 4)
    one = torch.randn(*leading, 1, 4)
    for turn in range(50):
        spoilt = torch.full((turn + 8,), torch.nan)
        del spoilt
        assert torch.equal(median_key(one.expand(*leading, keys, 4)), one)
        found = center(query, one.expand(*leading, keys, 4), 0.1)
        assert found is not None
        assert torch.equal(found, one.double())
