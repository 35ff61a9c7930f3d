"""The trial of a wheel asks what README shows, and expects what README shows."""

from release.trial import SENTENCE, TRANSLATION

from qkv.tasks.load import load


def test_the_translation_that_a_wheel_is_tried_with_is_the_one_that_readme_shows() -> None:
    assert load("example", task="translate").translate([SENTENCE]) == [TRANSLATION]
