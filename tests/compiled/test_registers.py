"""Kernels are compiled for the processor that Numba is told, not for the one running: no wider registers are used."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from qkv.compiled.target import TRIPLE

SOURCE, TESTS = Path(__file__).parents[2] / "src", Path(__file__).parents[2]
HASWELL = {
    "NUMBA_CPU_NAME": "haswell",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}
GENERIC = {"NUMBA_CPU_NAME": "generic", "ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}
FORBIDDEN = pytest.mark.parametrize(
    ("settings", "forbidden"), [(HASWELL, {"zmm"}), (GENERIC, {"ymm", "zmm"})], ids=["haswell", "generic"]
)

COUNT = textwrap.dedent(
    """
    import json, re, sys
    from tests.compiled.every_kernel import kernels
    from qkv.compiled.kernels import assembly
    from qkv.compiled.target import WIDE
    from qkv.nn.decoding import block_kernel

    def registers(function, signature):
        text = assembly(function, signature)
        return {kind: len(re.findall(rf"%{kind}mm", text)) for kind in "xyz"}

    chosen = set(sys.argv[1:])
    found = {
        name: registers(kernel.py_func, kernel.signature_at("f4"))
        for name, kernel in kernels()
        if not chosen or name in chosen
    }
    if not chosen:
        found["block_kernel"] = registers(block_kernel._step, block_kernel._SIGNATURE)
    print(json.dumps({"wide": WIDE, "registers": found}))
    """
)
QUICK = (
    "packed_kernel.product_alone",
    "layout_kernel.lay_out",
    "squared_norms_kernel.square",
    "few_queries_kernel.append",
)
"""The fastest to compile, among kernels with explicit registers and kernels with loops that request wide ones."""


def run(arguments: list[str], kept: Path, settings: dict[str, str]) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    # Without this setting Numba uses the registers of the processor it runs on.
    told = {
        "NUMBA_CPU_FEATURES": "",
        "NUMBA_CACHE_DIR": str(kept),
        "PYTHONPATH": os.pathsep.join(map(str, (SOURCE, TESTS))),
    }
    environment = clean | told | settings
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def assert_registers(kept: Path, settings: dict[str, str], forbidden: set[str], names: tuple[str, ...]) -> None:
    found = json.loads(run(["-c", COUNT, *names], kept, settings))
    assert not found["wide"]
    assert set(names) <= set(found["registers"])
    for name, counted in found["registers"].items():
        present = {f"{kind}mm" for kind, count in counted.items() if count}
        assert present, name
        assert not present & forbidden, name


x86 = pytest.mark.skipif(not TRIPLE.startswith("x86_64"), reason="names registers of x86")


@x86
@FORBIDDEN
def test_registers_are_those_of_the_processor_that_is_asked_for(
    settings: dict[str, str], forbidden: set[str], tmp_path: Path
) -> None:
    assert_registers(tmp_path, settings, forbidden, QUICK)


@x86
@pytest.mark.slow
@FORBIDDEN
def test_registers_of_every_kernel(settings: dict[str, str], forbidden: set[str], tmp_path: Path) -> None:
    assert_registers(tmp_path, settings, forbidden, ())


PRODUCT = textwrap.dedent(
    """
    import json, torch
    from qkv.linalg.packed import PackedWeight
    weight, x = (torch.arange(n * 24.0).view(n, 24).remainder(7) for n in (40, 9))
    assert torch.equal(PackedWeight(weight).times(x, None), x @ weight.T)
    """
)


@x86
@pytest.mark.slow
def test_processors_that_share_a_folder_of_kernels_never_share_a_kernel(tmp_path: Path) -> None:
    """A panel is as wide as two registers: code for another processor would read beyond it.

    Machine code is stored by processor and features, and the width depends on these only.
    """
    kept = []
    for settings in (GENERIC, HASWELL, GENERIC):
        run(["-c", PRODUCT], tmp_path, settings)
        kept.append(len(list(tmp_path.rglob("*.kernel"))))
    assert kept[0] < kept[1] == kept[2]


@x86
@pytest.mark.slow
def test_kernels_are_exact_on_the_least_processor(tmp_path: Path) -> None:
    """Registers of 128 bits, no fused multiply-add; `make test-portable` runs all tests with AVX2."""
    folder = str(TESTS / "tests" / "compiled")
    run(
        ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", folder, f"--ignore={__file__}"],
        tmp_path,
        GENERIC,
    )
