import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import colormaps

from qkv.view.colors import RAMPS, color, ink


def luminance(rgb):
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in np.array(rgb) / 255]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


@pytest.mark.parametrize("name", RAMPS)
def test_the_scales_are_those_of_matplotlib(name):
    ours = np.array([color(step / 255, RAMPS[name]) for step in range(256)])
    theirs = colormaps[name](np.arange(256))[:, :3] * 255
    assert np.abs(ours - theirs).max() < 6


def test_more_weight_is_never_darker():
    lightness = [luminance(color(step / 1000)) for step in range(1001)]
    assert min(np.diff(lightness)) > -0.002


@given(st.floats(0, 1))
def test_numbers_can_be_read_on_every_color(fraction):
    light, dark = sorted((luminance(color(fraction)), luminance(ink(fraction))), reverse=True)
    assert (light + 0.05) / (dark + 0.05) > 3.5
