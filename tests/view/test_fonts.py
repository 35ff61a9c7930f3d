from qkv.view.fonts import BASE, drawable


def test_letters_of_the_base_font_need_no_other():
    assert drawable(["weiße", "Männer", "шум", "ελ"]) == (("weiße", "Männer", "шум", "ελ"), (BASE,))


def test_what_no_font_has_becomes_a_box():
    private = "\U0010fffd"
    assert drawable([f"a{private}b"])[0] == ("a▯b",)


def test_joiners_vanish_rather_than_becoming_boxes():
    assert "▯" not in drawable(["a\u200db", "❤\ufe0f"])[0][0]
    assert drawable(["\u200d"])[0][0] != ""
