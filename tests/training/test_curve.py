import errno
import math
import os
import struct
from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.image import imread

from qkv.errors import CheckpointError
from qkv.training.curve import Curve, draw, smoothed
from qkv.training.events import Logged, Said, Saved, Updated

TRAIN = [{"step": step, "kind": "train", "loss": 5 / step} for step in range(10, 100, 10)]
JUDGED = [{"step": 50, "kind": "validation", "bleu": 3.0, "chrf": 9.0, "better": True}]


def size(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    return struct.unpack(">II", png[16:24])


@pytest.mark.parametrize("lines", [[], TRAIN, TRAIN + JUDGED, JUDGED, [{"step": 1, "kind": "train", "loss": None}]])
def test_every_stage_of_a_run_can_be_drawn(lines):
    width, height = size(draw(lines))
    assert width == 1200
    assert height == (960 if JUDGED[0] in lines else 600)


@pytest.mark.parametrize("scale", [1e-7, 1e-4, 1.0, 1e7])
def test_nothing_is_cut_off_at_the_edges(scale):
    judged = [{"step": 90, "kind": "validation", "loss": 5.458 * scale, "better": True}]
    train = [{**line, "loss": line["loss"] * scale} for line in TRAIN]
    picture = imread(BytesIO(draw(train + judged)))[..., :3]
    for edge in (picture[:, :2], picture[:, -2:], picture[:2], picture[-2:]):
        assert (edge == 1).all()


def test_the_same_lines_give_the_same_picture():
    assert draw(TRAIN + JUDGED) == draw(TRAIN + JUDGED)


def test_the_monitored_figure_is_drawn():
    assert draw(TRAIN + JUDGED, "chrf") != draw(TRAIN + JUDGED, "bleu") == draw(TRAIN + JUDGED)


def test_the_picture_is_drawn_at_a_checkpoint_where_it_is_time(tmp_path):
    curve = Curve(tmp_path, None, print, seconds=0.0)
    curve(Said("x"))
    assert not (tmp_path / "loss.png").exists()
    curve(Saved(1, tmp_path))
    size((tmp_path / "loss.png").read_bytes())


def test_the_picture_follows_the_log(tmp_path):
    curve = Curve(tmp_path, None, print, seconds=0.0)
    curve(Updated(1, 2.0))
    assert not (tmp_path / "loss.png").exists()
    curve(Logged(2, 0, 2.0, 1e-3, 1.0, 10.0, 1.0, 1.0))
    size((tmp_path / "loss.png").read_bytes())


def test_the_picture_of_the_last_checkpoint_is_drawn_at_the_end(tmp_path):
    curve = Curve(tmp_path, None, print, seconds=3600.0)
    curve(Saved(1, tmp_path))
    assert not (tmp_path / "loss.png").exists()
    curve.close()
    size((tmp_path / "loss.png").read_bytes())


def test_where_nothing_was_saved_nothing_is_drawn(tmp_path):
    Curve(tmp_path, None, print, seconds=0.0).close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "loss.png is not drawn: picture: expected enough memory"),
        (TypeError("bug"), "TypeError: bug"),
    ],
)
def test_a_picture_that_cannot_be_drawn_is_said_and_ends_no_training(tmp_path, monkeypatch, error, said):
    def fail(lines, monitor):
        raise error

    heard = []
    curve = Curve(tmp_path, None, heard.append, seconds=0.0)
    with monkeypatch.context() as patched:
        patched.setattr("qkv.training.curve.draw", fail)
        curve(Saved(1, tmp_path))
    assert len(heard) == 1
    assert said in heard[0]
    assert list(tmp_path.iterdir()) == []
    curve.close()
    size((tmp_path / "loss.png").read_bytes())


def test_a_disk_that_fails_while_the_picture_is_drawn_is_an_error(tmp_path, monkeypatch):
    def fail(lines, monitor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("qkv.training.curve.draw", fail)
    with pytest.raises(CheckpointError, match="No space left"):
        Curve(tmp_path, None, print, seconds=0.0)(Saved(1, tmp_path))


@given(st.lists(st.floats(-1e6, 1e6), max_size=30))
def test_smoothing_stays_within_what_it_saw(values):
    result = smoothed(values)
    assert len(result) == len(values)
    for index, value in enumerate(result):
        seen = values[: index + 1]
        assert min(seen) - 1e-6 <= value <= max(seen) + 1e-6
        assert math.isfinite(value)
    assert result[:1] == values[:1]


@pytest.mark.parametrize("name", ["$\\frac{1$", "$$$", "a\nb", "\x1b[31m\x07", "x" * 100_000])
def test_a_figure_of_any_name_is_drawn(name):
    assert draw([{"step": 1, "kind": "validation", name: 1.0}]).startswith(b"\x89PNG")
