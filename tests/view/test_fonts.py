import torch

from qkv.view.alignment import Alignment
from qkv.view.picture import BASE, drawable, png


def test_letters_of_the_base_font_need_no_other():
    assert drawable(["weiße", "Männer", "шум", "ελ"]) == (("weiße", "Männer", "шум", "ελ"), (BASE,))


def test_a_letter_that_the_base_font_lacks_comes_from_another_without_a_warning():
    names, families = drawable(["ᶁog", "dog"])  # matplotlib's own STIX has ᶁ
    assert names == ("ᶁog", "dog")
    assert len(families) == 2
    assert png([Alignment(names, names, torch.eye(2))])


def test_what_no_font_has_becomes_a_box():
    private = "\U0010fffd"
    assert drawable([f"a{private}b"])[0] == ("a▯b",)


def test_joiners_vanish_rather_than_becoming_boxes():
    assert "▯" not in drawable(["a\u200db", "❤\ufe0f"])[0][0]
    assert drawable(["\u200d"])[0][0] != ""
