"""Which kernels of qkv's own `auto` may launch on a GPU: those that `qkv tune` measured on that kind of GPU.

Certificates lie in `qkv/certificates.json` in the user's cache, one for each kind of device. One holds for the versions
of PyTorch, Triton and kernels that it was measured with.
"""

import hashlib
import importlib.metadata
import json
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from qkv.algorithms import additive
from qkv.checkpoint.disk import make_folder, save_file
from qkv.engine.algorithm import Algorithm
from qkv.engine.problem import Problem
from qkv.errors import ConfigError
from qkv.files import read_file
from qkv.strict_json import parse_json

_LARGEST = 1 << 20
_AGAIN = "run qkv tune --device cuda"


def path() -> Path:
    """Return the file of all certificates."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "qkv" / "certificates.json"


def this_device() -> str | None:
    """Return the kind of the current GPU; None without one."""
    if not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability()
    return f"{torch.cuda.get_device_name()}, sm_{major}{minor}"


def versions() -> dict[str, str]:
    """Return what a certificate depends on besides the device."""
    source = read_file(Path(additive.__path__[0], "triton_kernels.py"), _LARGEST)
    triton = importlib.metadata.version("triton")
    return {"torch": torch.__version__, "triton": triton, "kernels": hashlib.sha256(source).hexdigest()[:16]}


def refusal(algorithm: Algorithm, problem: Problem) -> str | None:
    """Return why `auto` does not take an algorithm that needs a certificate, None if it may.

    Args:
        algorithm: one whose kernels can run here.
        problem: one that it does not refuse.
    """
    rows = _rows(path(), this_device())
    if isinstance(rows, str):
        return rows
    kind = str(problem.dtype).removeprefix("torch."), problem.gradient
    rows = [row for row in rows if (row["dtype"], row["gradient"]) == kind and row["algorithm"] == algorithm.name]
    if not rows:
        return f"its certificate has no measurement like this one: {_AGAIN}"
    worst = max(row["error"] for row in rows)
    if worst > 1:
        return f"its errors on this GPU were {worst:.2g} times the limit"
    ours, composed = _times(rows, problem.rows * problem.queries * problem.keys)
    if ours >= composed:
        return f"it took {ours:.3g} ms on this GPU, and PyTorch's operators {composed:.3g}"
    return None


def _times(rows: list[dict[str, Any]], pairs: int) -> tuple[float, float]:
    """Return the times at the largest measured size that is not above this one, or else at the smallest."""
    rows = sorted(rows, key=lambda row: row["pairs"])
    nearest = [rows[0], *(row for row in rows if row["pairs"] <= pairs)][-1]
    return nearest["milliseconds"], nearest["composed"]


def standing(algorithm: Algorithm, problem: Problem) -> str:
    """Return what is known here of an algorithm that needs a certificate: what `qkv tune` measured, or what it lacks.

    Args:
        algorithm, problem: as `refusal` takes them.
    """
    return refusal(algorithm, problem) or f"certified on {this_device()} by {path()}"


def store(device: str, rows: list[dict[str, Any]]) -> None:
    """Store the measurements of a device in the place of older ones.

    Raises:
        ConfigError: the file of earlier certificates cannot be read.
        OSError: it cannot be written.
    """
    stored = _stored(path())
    stored[device] = {"versions": versions(), "rows": rows}
    make_folder(path().parent)
    save_file(path(), json.dumps(stored, indent=1).encode())
    _rows.cache_clear()


@lru_cache(maxsize=16)
def _rows(file: Path, device: str | None) -> "list[dict[str, Any]] | str":
    """Return the measurements that hold on a device, or why there are none."""
    certificate = _stored(file).get(device) if device else None
    if certificate is None:
        return f"no certificate of this GPU: {_AGAIN}"
    if certificate["versions"] != versions():
        return f"its certificate is of other versions: {_AGAIN}"
    rows: list[dict[str, Any]] = certificate["rows"]
    return rows


def _stored(file: Path) -> dict[str, Any]:
    if not file.exists():
        return {}
    try:
        stored = parse_json(read_file(file, _LARGEST))
        complete = all({"versions", "rows"} <= set(certificate) for certificate in stored.values())
    except (ValueError, TypeError, AttributeError, RecursionError):
        complete = False
    if not complete:
        raise ConfigError("certificates", "a file written by qkv tune", f"{file}", f"Remove it, and {_AGAIN}.")
    return dict(stored)
