"""The first screen of the command."""

from tests.cli.command import run, succeeded


def test_training_is_first_and_the_packaged_model_is_named() -> None:
    before, _, listed = succeeded(run("--help")).stdout.partition("─ Train ─")
    assert "qkv translate example" in before
    assert listed.replace("│", " ").split("\n")[1].split()[0] == "train"
