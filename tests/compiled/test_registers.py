"""Kernels are compiled for the target that is named, not for the processor that compiles: no wider registers."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from qkv.compiled.target import BUILD_VARIABLE, TARGETS, Target

SOURCE, TESTS = Path(__file__).parents[2] / "src", Path(__file__).parents[2]
COUNT = textwrap.dedent(
    """
    import json, re, sys
    from tests.compiled.every_kernel import kernels
    from qkv.compiled.compiler import assembly
    from qkv.compiled.target import REGISTER

    PATTERNS = {512: r"%zmm", 256: r"%ymm", 128: r"%xmm|\\bv\\d+\\.(?:4s|2d|16b)|\\bq\\d+\\b"}
    chosen = set(sys.argv[1:])
    found = {}
    for name, kernel in kernels():
        if not chosen or name in chosen:
            text = assembly(kernel, "float32")
            found[name] = {bits: len(re.findall(pattern, text)) for bits, pattern in PATTERNS.items()}
    print(json.dumps({"register": REGISTER, "found": found}))
    """
)
QUICK = (
    "packed_kernel.product_alone",
    "layout_kernel.lay_out",
    "few_queries_kernel.append",
)
"""The fastest to compile, among kernels with explicit registers and kernels with loops that request wide ones."""
each_target = pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)


def assert_registers(target: Target, names: tuple[str, ...]) -> None:
    path = os.pathsep.join(map(str, (SOURCE, TESTS)))
    environment = {**os.environ, BUILD_VARIABLE: target.name, "PYTHONPATH": path}
    command = [sys.executable, "-c", COUNT, *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    read = json.loads(done.stdout)
    assert read["register"] == target.register
    assert set(names) <= set(read["found"])
    widest = 0
    for name, counted in read["found"].items():
        used = {int(bits) for bits, count in counted.items() if count}
        assert used, name
        assert max(used) <= target.register, name
        widest = max(widest, *used)
    assert widest == target.register


@pytest.mark.parametrize(
    "target",
    [
        pytest.param(target, id=target.name, marks=[pytest.mark.slow] * (target.name != "x86-64-v3"))
        for target in TARGETS
    ],
)
def test_registers_are_those_of_the_target(target: Target) -> None:
    assert_registers(target, QUICK)


@pytest.mark.slow
@each_target
def test_registers_of_every_kernel(target: Target) -> None:
    assert_registers(target, ())
