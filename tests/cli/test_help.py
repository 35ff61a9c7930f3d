"""The first screen of the command."""

import re

import pytest
from tests.cli.command import refused, run, succeeded

from qkv.tasks.catalog import TASKS
from qkv.tasks.settings import COMMON, START


def test_training_is_first_and_the_packaged_model_is_named() -> None:
    before, _, listed = succeeded(run("--help")).stdout.partition("─ Train ─")
    assert "qkv translate example" in before
    assert listed.replace("│", " ").split("\n")[1].split()[0] == "train"


@pytest.mark.parametrize("task", TASKS)
def test_common_flags_come_first_and_what_is_required_is_marked(task: str) -> None:
    """The first topic of a training has few flags; without those that it marks, the command says what it lacks."""
    text = succeeded(run("train", task, "--help")).stdout
    first, others = text.partition(f"─ {START} ─")[2].split("╰", 1)
    flags = re.findall(r"^│ (--[a-z-]+)", first, flags=re.MULTILINE)
    assert flags == [f"--{name}" for name in COMMON if f"--{name}" in flags]
    assert {"--out"} < set(flags)
    assert len(flags) < 10
    assert not set(flags) & set(re.findall(r"^│ (--[a-z-]+)", others, flags=re.MULTILINE))
    required = [flag for flag in flags if re.search(rf"│ {flag} [^│]*\(required\)", first)]
    assert "--out" in required
    assert "(required)" not in others
    for flag in required:
        given = [word for other in required if other != flag for word in (other, "x")]
        refused(run("train", task, *given), "expected")


def test_switches_show_no_type_and_choices_are_listed() -> None:
    text = succeeded(run("train", "classify", "--help")).stdout
    assert "<bool>" not in re.sub(r"─ (Output|Options) ─.*?╰", "", text, flags=re.DOTALL)
    for flag, choices in (("--model", ("transformer", "gru")), ("--schedule", ("cosine", "linear"))):
        line = text.partition(f"│ {flag} ")[2].partition("│ --")[0]
        assert line.split()[0] == "<name>"
        assert all(choice in line for choice in choices)
