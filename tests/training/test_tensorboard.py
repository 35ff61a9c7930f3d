import sys
import warnings

import pytest

from qkv.errors import ConfigError
from qkv.metrics.figure import Figure
from qkv.training.events import Logged, Said, Validated
from qkv.training.tensorboard import Board


def test_scalars_reach_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package's own
        board = Board(tmp_path, 0)
        board(Logged(10, 0, 2.5, 1e-3, 1.0, 100.0, 1.0, 1.0))
        board(Validated(20, [Figure("bleu", 31.0, "")], True))
        board(Said("x"))
        board.close()
        events = EventAccumulator(str(tmp_path / "tensorboard"))
        events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [(10, 2.5)]
    assert [(event.step, event.value) for event in events.Scalars("validation/bleu")] == [(20, 31.0)]


def test_without_the_package_the_mend_is_said(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("tensorboard", "torch.utils.tensorboard"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[log\]'"):
        Board(tmp_path, 0)
