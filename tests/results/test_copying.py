"""The copying row: from its settings to the page."""

import json
from pathlib import Path

import pytest

from results import copying

SETTINGS = """
[data]
train = 40
validation = 4
test = 5
seed = 0
[tokenizer]
tokenizer = "word"
[training]
batch_tokens = 256
label_smoothing = 0.0
[models.gru_mixture]
steps = 2
learning_rate = 0.01
model = { model = "gru", copy = "mixture", embedding = 4, hidden = 4, attention = 4 }
"""


def test_a_row_goes_from_its_settings_to_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("results.row.ROOT", tmp_path)
    (row,) = copying.ROWS
    assert "Not run." in copying.section()
    row.config.parent.mkdir()
    row.config.write_text(SETTINGS)
    for train in (True, False):
        copying.run_row(row, tmp_path, tmp_path / "runs", train=train)
    figures = json.loads(row.record.read_text())["figures"]
    assert figures["gru_mixture"]["greedy"] == figures["gru_mixture"]["beam"] == 0
    assert (row.kept / "origin.png").exists()
    assert "| GRU, additive attention | mixture | **0.0** % | 0.0 % |" in copying.section()
