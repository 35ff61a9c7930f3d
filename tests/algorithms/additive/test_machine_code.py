"""Additive kernels: compiled to vector instructions, and the same as plain Python."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from tests.algorithms.additive.direct import case, ours

from qkv.compiled import kernels

SOURCE = Path(kernels.__file__).parents[2]
SMALL = {"items": 1, "keys": 36, "width": 7, "columns": 2}
PLAIN = textwrap.dedent(
    f"""
    import json
    import numpy as np
    from tests.algorithms.additive.direct import case, ours
    results = []
    for queries in (1, 30):
        found = ours(case(19, queries=queries, **{SMALL}), np.ones((1, queries, 2), np.float32))
        results.append({{name: x.numpy().ravel().tolist() for name, x in found.items()}})
    print(json.dumps(results))
    """
)


@pytest.mark.slow
def test_plain_python_gives_the_same():
    """The kernels are Python: what is compiled can be read, and run a step at a time."""
    settings = {**os.environ, "QKV_KERNELS": "python", "PYTHONPATH": os.pathsep.join((str(SOURCE), "."))}
    done = subprocess.run([sys.executable, "-c", PLAIN], env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for queries, found in zip((1, 30), json.loads(done.stdout), strict=True):
        expected = ours(case(19, queries=queries, **SMALL), np.ones((1, queries, 2), np.float32))
        for name, numbers in found.items():
            np.testing.assert_allclose(numbers, expected[name].numpy().ravel(), rtol=1e-5, atol=1e-6, err_msg=name)
