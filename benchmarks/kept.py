"""The figures that benchmarks keep: one JSON file each, by kind of processor, so that no machine replaces another's."""

import json
from pathlib import Path
from typing import Any

from qkv.planner.costs import this_processor

_ZEN3 = {*range(0x10), *range(0x20, 0x60)}
"""Models of AMD's family 25 without AVX-512; the others are Zen 4."""
_FAMILIES = {("AuthenticAMD", 26): "amd-zen5", ("GenuineIntel", 6): "intel"}


def processor() -> str:
    """Return the name of this kind of processor, with the widest instructions that PyTorch uses."""
    vendor, family, (model,), capability = this_processor()
    name = _FAMILIES.get((vendor, family), f"{vendor}-{family}-{model}")
    if (vendor, family) == ("AuthenticAMD", 25):
        name = "amd-zen3" if model in _ZEN3 else "amd-zen4"
    return f"{name}-{capability.lower()}"


def read(path: Path) -> dict[str, Any]:
    """Return the figures of every processor; none where nothing was measured."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def keep(path: Path, figures: dict[str, Any]) -> None:
    """Store the figures of this processor, in place of its earlier ones with the same names."""
    known = read(path)
    known[processor()] = known.get(processor(), {}) | figures
    path.parent.mkdir(exist_ok=True)
    path.write_text(_lines(known), encoding="utf-8")


def _lines(known: dict[str, Any]) -> str:
    """Write the figures of every processor as JSON, each figure on a line of its own."""
    parts = []
    for name, figures in known.items():
        lines = [f"  {json.dumps(each)}: {json.dumps(figures[each])}" for each in figures]
        parts.append(f" {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n }")
    return "{\n" + ",\n".join(parts) + "\n}\n"
