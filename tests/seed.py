"""The seed of every test whose verdict depends on random inputs, from the environment variable QKV_TEST_SEED.

`make test-processors` runs these tests with several seeds; with any seed they must pass.
"""

import os
import zlib

import torch

SEED = int(os.environ.get("QKV_TEST_SEED", "0"))


def stored(*parts: object) -> int:
    """A seed for this name: the same in every process, another one for another SEED."""
    return zlib.crc32("/".join(map(str, (SEED, *parts))).encode())


def generator(*parts: object) -> torch.Generator:
    """A generator for this name."""
    return torch.Generator().manual_seed(stored(*parts))
