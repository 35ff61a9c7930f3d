import io
import subprocess
import sys
from itertools import combinations
from xml.etree import ElementTree

import matplotlib
import matplotlib.image
import numpy as np
import pytest
import torch

from qkv.errors import ConfigError
from qkv.view.alignment import Alignment
from qkv.view.colors import color
from qkv.view.picture import DPI, figure_of, png, svg


def uniform(source, target):
    return Alignment(tuple(source), tuple(target), torch.full((len(target), len(source)), 0.5))


def pixels(content):
    return (matplotlib.image.imread(io.BytesIO(content))[..., :3] * 255).round().astype(int)


def overlapping(axes):
    boxes = [(text.get_text(), text.get_window_extent()) for text in axes.texts]
    return [(one, other) for (one, a), (other, b) in combinations(boxes, 2) if a.overlaps(b)]


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (["Zwei", "junge", "Männer"], ["Two", "young", "males"]),
        (list("Tue, 3rd of May 2011"), list("2011-05-03")),
        (["Geschwindigkeitsbegrenzungsüberwachungsanlage"] * 12, ["internationalization" * 4] * 12),
        (["gy" + "\u0301" * 6, "Å" + "\u0308" * 6] * 6, ["gy" + "\u0301" * 6, "Å" + "\u0308" * 6] * 6),
        (["中文", "שלום", "مرحبا", "$x^2$", "👨\u200d👩\u200d👧"], ["中文", "שלום", "مرحبا", "$x^2$"]),
        pytest.param(
            [f"source{place}" for place in range(400)],
            [f"target{place}" for place in range(300)],
            marks=pytest.mark.slow,
        ),
        pytest.param(list("ab") * 300, list("cd") * 200, marks=pytest.mark.slow),
        (list("ab") * 150, list("cd") * 100),
    ],
)
def test_labels_never_overlap_nor_leave_the_picture(source, target):
    figure = figure_of([uniform(source, target)])
    axes = figure.axes[0]
    assert overlapping(axes) == []
    page = figure.bbox
    for text in axes.texts:
        box = text.get_window_extent()
        assert page.x0 <= box.x0 <= box.x1 <= page.x1
        assert page.y0 <= box.y0 <= box.y1 <= page.y1
    assert not any(text.get_window_extent().overlaps(axes.get_window_extent()) for text in axes.texts)


def test_each_cell_has_the_color_of_its_weight(words):
    figure = figure_of([words])
    box, picture = figure.axes[0].get_window_extent(), pixels(png([words]))
    height, size = picture.shape[0], len(words.source)
    for t in range(size):
        for s in range(size):
            x = int(box.x0 + (s + 0.5) * box.width / size)
            y = int(height - box.y1 + (t + 0.5) * box.height / size)
            expected = color(float(words.fractions()[t, s]))
            assert np.abs(picture[y, x] - expected).max() <= 6


def test_several_alignments_stand_below_each_other(words, date):
    one, other, both = figure_of([words]), figure_of([date]), figure_of([words, date])
    assert both.get_figheight() == pytest.approx(one.get_figheight() + other.get_figheight())
    assert len(both.axes) == 4


def test_an_svg_is_the_same_each_time_and_holds_no_reference_outside(words):
    content = svg([words])
    assert content == svg([words])
    root = ElementTree.fromstring(content)
    links = {value for node in root.iter() for name, value in node.items() if name.endswith("href")}
    assert all(link.startswith(("#", "data:")) for link in links)


def test_hostile_tokens_are_only_drawn(hostile):
    content = svg([uniform(hostile[:60], ["x"]), uniform(["x"], hostile[60:120])])
    tags = {node.tag.rpartition("}")[2] for node in ElementTree.fromstring(content).iter()}
    assert not tags & {"script", "foreignObject", "a", "iframe", "img"}
    assert png([uniform(hostile[:60], ["x"])]).startswith(b"\x89PNG")


def test_dollars_are_dollars_even_where_the_user_sets_them_by_tex(words):
    with matplotlib.rc_context({"text.usetex": True, "text.parse_math": True, "font.family": "serif"}):
        figure = figure_of([uniform(["$\\bad", "$a$"], ["x"])])
    assert [text.get_text() for text in figure.axes[0].texts][:2] == ["$\\bad", "$a$"]
    assert not any(text.get_usetex() or text.get_parse_math() for text in figure.axes[0].texts)


@pytest.mark.parametrize("sizes", [(0, 1), (2, 0), (0, 0)])
def test_an_empty_side_is_said(sizes):
    figure = figure_of([uniform("s" * sizes[0], "t" * sizes[1])])
    assert "no tokens to attend to" in {text.get_text() for text in figure.axes[0].texts}
    assert png([uniform("s" * sizes[0], "t" * sizes[1])]).startswith(b"\x89PNG")


def test_no_alignment_and_too_many_are_refused():
    with pytest.raises(ConfigError, match="at least one"):
        png([])
    with pytest.raises(ConfigError, match=r"at most 200 inches high; got 99 .* \.html"):
        figure_of([uniform(["x"], ["y"] * 20)] * 99)


def test_a_long_map_stays_within_the_pixels_of_a_picture():
    figure = figure_of([uniform(["x"] * 1500, ["y"] * 1500)])
    assert max(figure.get_size_inches()) * DPI < 8000


@pytest.mark.slow
def test_drawing_leaves_no_global_state_behind():
    script = (
        "import sys, torch, matplotlib; before = matplotlib.rcParams.copy()\n"
        "from qkv.view.picture import svg; from qkv.view.alignment import Alignment\n"
        "svg([Alignment(('a',), ('b',), torch.ones(1, 1))])\n"
        "assert 'matplotlib.pyplot' not in sys.modules and before == matplotlib.rcParams.copy()"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True)
