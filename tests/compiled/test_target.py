"""Which library serves: by the processor, by QKV_KERNELS, and a reason where none does."""

import sys
import sysconfig
from pathlib import Path

import pytest

from qkv.compiled import target
from qkv.compiled.target import BUILD_VARIABLE, TARGETS, Target, choose, named
from qkv.errors import ConfigError

V3, V4 = named("x86-64-v3"), named("x86-64-v4")
SSE = frozenset({"sse4_1", "sse4_2", "avx"})


@pytest.fixture(autouse=True)
def _linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(target, "_flags", lambda: set(V4.needs))


@pytest.mark.parametrize(
    ("machine", "flags", "chosen", "reason"),
    [
        ("x86_64", V4.needs, "x86-64-v4", ""),
        ("x86_64", V3.needs | {"avx512f"}, "x86-64-v3", ""),
        ("x86_64", V3.needs, "x86-64-v3", ""),
        ("x86_64", V3.needs - {"fma"}, None, "need a processor with x86-64-v3 (it lacks fma, ...)"),
        ("x86_64", SSE, None, "need a processor with x86-64-v3 (it lacks abm, ...)"),
        ("x86_64", frozenset(), None, "need a processor with x86-64-v3"),
        ("aarch64", frozenset(), "aarch64", ""),
        ("riscv64", frozenset(), None, "not for riscv64"),
    ],
)
def test_the_processor_decides(
    monkeypatch: pytest.MonkeyPatch, machine: str, flags: frozenset[str], chosen: str | None, reason: str
) -> None:
    monkeypatch.setattr(target.platform, "machine", lambda: machine)
    monkeypatch.setattr(target, "_flags", lambda: set(flags))
    choice = choose({})
    assert (choice.target and choice.target.name) == chosen
    assert reason in choice.reason
    assert bool(choice.reason) is (chosen is None)


@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_other_systems_say_so(monkeypatch: pytest.MonkeyPatch, system: str) -> None:
    monkeypatch.setattr(sys, "platform", system)
    assert choose({}) == (None, False, "compiled kernels are built for Linux only")


def test_free_threaded_python_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: int(name == "Py_GIL_DISABLED"))
    assert choose({}).target is None
    assert "not as free-threaded Python does" in choose({}).reason


@pytest.mark.parametrize("each", TARGETS, ids=lambda each: each.name)
def test_a_name_chooses_a_library_that_the_processor_can_run(each: Target) -> None:
    if each.machine == "x86_64":
        assert choose({"QKV_KERNELS": each.name}).target == each
    else:
        with pytest.raises(ConfigError, match=r"QKV_KERNELS: expected x86-64-v4 or x86-64-v3 or python or none"):
            choose({"QKV_KERNELS": each.name})
    assert choose({BUILD_VARIABLE: each.name}).target == each


def test_a_name_that_the_processor_cannot_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "_flags", lambda: set(V3.needs))
    with pytest.raises(ConfigError, match=r"QKV_KERNELS: expected x86-64-v3 or python or none on this machine"):
        choose({"QKV_KERNELS": "x86-64-v4"})
    with pytest.raises(ConfigError, match='Did you mean "x86-64-v3"'):
        choose({"QKV_KERNELS": "x86-64-v33"})


def test_plain_python_and_none_choose_no_library() -> None:
    assert choose({"QKV_KERNELS": "python"}) == (None, True, "")
    assert choose({"QKV_KERNELS": "none"}) == (None, False, "QKV_KERNELS=none")


def test_the_flags_are_those_of_the_first_processor(tmp_path: Path) -> None:
    monkeypatched = tmp_path / "cpuinfo"
    monkeypatched.write_text("processor\t: 0\nflags\t\t: fpu avx2\n\nprocessor\t: 1\nflags\t\t: fpu\n")
    assert FLAGS(monkeypatched) == {"fpu", "avx2"}
    assert FLAGS(tmp_path / "none") == set()


FLAGS = target._flags
