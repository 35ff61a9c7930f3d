"""What a notebook shows, in a real IPython kernel that a client runs cell by cell."""

from typing import Any

import pytest

nbclient = pytest.importorskip("nbclient", reason="pip install '.[dev]'")
pytest.importorskip("ipykernel", reason="pip install '.[dev]'")

# They warn about folders and event loops of their own.
pytestmark = pytest.mark.filterwarnings("ignore")

BEGIN = """
import torch
import qkv
from qkv.nn.attention import Attention
from qkv.recording.recorder import record

query, key, value = torch.randn(3, 1, 2, 5, 4)
seam = Attention()
with record(seam) as trace:
    seam(query, key, value)
amap = qkv.attention_map(query, key, mask=qkv.masks.causal())
"""
CELLS = {
    "trace.show()": "serving = trace.show()",
    "map.show()": "other = amap.show()",
    "trace": "trace",
    "map": "amap",
    "explain": "qkv.explain(query, key, value)",
    "translator": "translator = qkv.load('example', task='translate'); translator",
    "translation": "found = translator.translate_fully(['Der Hund sucht den Ball .'], attention=True)[0]; found",
    "alignment": "found.alignment",
    "training": "run = qkv.train('regress', data=[(x / 9, x * x / 81) for x in range(9)], out='runs/square')",
    "bar": (
        "pairs = [('ein Hund', 'a dog'), ('eine Katze', 'a cat')] * 20\n"
        "run = qkv.train('translate', data=pairs, out='runs/pets', model='gru', width=8, tokenizer='word', steps=4)"
    ),
    "run": "run",
    "verdict": "from qkv.course import check; check('attention', lambda query, key, value: value)",
    "answers": "import urllib.request; print(urllib.request.urlopen(serving.url + 'api/scene').status)",
}
OF_PROCESSES = {
    "bar": (
        "pairs = [('ein Hund', 'a dog'), ('eine Katze', 'a cat')] * 20\n"
        "run = qkv.train('translate', data=pairs, out='runs/two', model='gru', width=8, tokenizer='word', steps=4,"
        " batch_tokens=32, accumulate=2, processes=2)"
    ),
}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """The outputs of each cell."""
    return run(CELLS, tmp_path_factory)


@pytest.fixture(scope="module")
def outputs_of_processes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    return run(OF_PROCESSES, tmp_path_factory)


def run(cells: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """Return the outputs of each cell, from one kernel that keeps its files in a scratch folder."""
    from nbformat.v4 import new_code_cell, new_notebook

    base = tmp_path_factory.mktemp("kernel")
    notebook = new_notebook(cells=[new_code_cell(code) for code in (BEGIN, *cells.values())])
    with pytest.MonkeyPatch.context() as patch:
        for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR"):
            patch.setenv(name, str(base / name))
        # "python3" is this interpreter, whatever kernels the machine has.
        nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute(cwd=str(base))
    assert notebook.cells[0].outputs == []
    return {name: cell.outputs for name, cell in zip(cells, notebook.cells[1:], strict=True)}


@pytest.mark.parametrize("cell", ["trace.show()", "map.show()"])
def test_show_is_inline_and_prints_its_address(cell: str, outputs: dict[str, list[Any]]) -> None:
    shown, printed = outputs[cell]
    assert shown.output_type == "display_data"
    assert shown.data["text/html"].startswith('<iframe title="attention" sandbox="allow-scripts"')
    assert shown.data["text/plain"] == "attention"
    assert (printed.output_type, printed.name) == ("stream", "stdout")
    assert printed.text.startswith("http://127.0.0.1:")
    assert printed.text.count("\n") == 1


@pytest.mark.parametrize("cell", ["trace", "map"])
def test_a_cell_that_ends_in_a_trace_or_a_map_shows_it(cell: str, outputs: dict[str, list[Any]]) -> None:
    (result,) = outputs[cell]
    assert result.output_type == "execute_result"
    assert result.data["text/html"].startswith("<iframe ")
    assert len(result.data["text/plain"]) < 300


def test_explain_is_a_table(outputs: dict[str, list[Any]]) -> None:
    (result,) = outputs["explain"]
    assert result.output_type == "execute_result"
    assert result.data["text/html"].startswith("<table>")
    assert "<b>algorithm</b>" in result.data["text/html"]
    assert result.data["text/plain"].startswith("problem ")


def test_the_viewer_of_a_notebook_answers(outputs: dict[str, list[Any]]) -> None:
    (printed,) = outputs["answers"]
    assert printed.text == "200\n"


def test_a_plan_unfolds_its_rejected_algorithms(outputs: dict[str, list[Any]]) -> None:
    shown = outputs["explain"][0].data["text/html"]
    before, _, after = shown.partition("<details>")
    assert "algorithm" in before
    assert "sdpa" not in after.partition("<summary>")[0]
    assert after.count("<tr>") > 10 > before.count("<tr>") - 5


@pytest.mark.parametrize("cell", ["translator", "translation", "alignment", "run", "verdict"])
def test_results_are_shown_briefly_and_as_html(cell: str, outputs: dict[str, list[Any]]) -> None:
    (result,) = (each for each in outputs[cell] if each.output_type == "execute_result")
    assert result.data["text/html"].startswith(("<table>", "<img ", "<p "))
    assert len(result.data["text/plain"]) < 300


def test_a_drawing_has_a_text(outputs: dict[str, list[Any]]) -> None:
    shown = outputs["alignment"][0].data["text/html"]
    assert 'alt="Attention: The to ' in shown
    assert 'src="data:image/svg+xml;base64,' in shown
    assert shown in outputs["translation"][-1].data["text/html"]


def test_training_has_one_bar_and_no_line_for_each_update(outputs: dict[str, list[Any]]) -> None:
    expect_one_bar(outputs["bar"])


@pytest.mark.slow
def test_a_training_of_processes_has_one_bar(outputs_of_processes: dict[str, list[Any]]) -> None:
    expect_one_bar(outputs_of_processes["bar"])


def expect_one_bar(outputs: list[Any]) -> None:
    (bar,) = (each for each in outputs if each.output_type == "display_data")
    assert '<progress value="4" max="4"' in bar.data["text/html"]
    lines = "".join(each.text for each in outputs if each.output_type == "stream")
    assert "step " not in lines
