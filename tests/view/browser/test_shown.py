"""What maps show in place of weights, chosen as a user does."""

import pytest
import torch
from tests.view.browser.test_map import drawn

from qkv.models.language_model import DecoderConfig, LanguageModel
from qkv.recording.recorder import record
from qkv.tasks.rerunning import with_answers
from qkv.view.answers.attribution import gradients_of, rollout_of
from qkv.view.colors import color
from qkv.view.offline import page as saved_page
from qkv.view.scene import Layer, ModelAnswer, Scene

_CELL = ".readout output"


@pytest.fixture(scope="module")
def run():
    """A language model that can run again."""
    torch.manual_seed(0)
    model = LanguageModel(DecoderConfig(size=20, width=16, heads=2, layers=2)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    ids = torch.tensor([[3, 4, 5, 6, 7]])
    with torch.no_grad(), record(model) as trace:
        model(ids)
    answer = lambda: ModelAnswer("x", tuple("abcde"), model(ids)[0].softmax(-1), str)  # noqa: E731
    return with_answers(trace.scene(0, {"text": tuple("vwxyz")}), model, trace, answer)


def field(page, label):
    return page.locator(f"label.field:has(span:text-is('{label}')) select")


def chosen(page, label, value):
    field(page, label).select_option(value)


def value_at(page, row, column):
    """Point at a cell, and read its value."""
    at = drawn(page)
    box = page.locator(".field-of-view canvas").bounding_box()
    x = box["x"] + at["left"] + (column + 0.5 - at["x"]) * at["scale"]
    y = box["y"] + at["top"] + (row + 0.5 - at["y"]) * at["scale"]
    page.mouse.move(x, y)
    page.wait_for_function("!['…', undefined].includes(document.querySelector('.readout output')?.textContent)")
    return float(page.locator(_CELL).inner_text().replace("−", "-"))


def test_rollout_and_gradients_of_a_run(opened, served, run):
    page = opened(served(run) + "#view=map&layer=1&head=1")
    drawn(page)
    assert field(page, "Of").is_hidden()
    chosen(page, "Shown", "rollout")
    assert field(page, "Head").input_value() == "mean"
    assert value_at(page, 3, 1) == pytest.approx(float(rollout_of(run, 1)[3, 1]), rel=1e-2)
    chosen(page, "Shown", "gradient")
    assert field(page, "Head").input_value() == "1", "as before"
    gradients = gradients_of(run, 1, None)[1]
    assert value_at(page, 3, 1) == pytest.approx(float(gradients[3, 1]), abs=6e-4)
    at = drawn(page)
    assert at["high"] == -at["low"] == pytest.approx(float(gradients.abs().max()), rel=1e-4)
    page.locator("select option[value='2']", has_text="2: c").wait_for(state="attached")
    chosen(page, "Of", "2")
    page.wait_for_function("location.hash.includes('of=2')")
    expected = gradients_of(run, 1, 2)[1]
    page.wait_for_function("high => Math.abs(document.querySelector('canvas').dataset.high - high) < 1e-4 * high",
                           arg=float(expected.abs().max()))  # fmt: skip
    assert value_at(page, 2, 1) == pytest.approx(float(expected[2, 1]), abs=6e-4)
    page.get_by_role("link", name="Alignment").click()
    page.wait_for_selector(".stage .links path", state="attached")
    assert "gradient × attention" in page.locator(".legend").inner_text()


def test_a_saved_page_rolls_out_and_names_what_it_lacks(opened, run, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(saved_page(run).text)
    page = opened(path.as_uri() + "#view=map&layer=1&quantity=rollout")
    assert value_at(page, 4, 2) == pytest.approx(float(rollout_of(run, 1)[4, 2]), rel=1e-2)
    chosen(page, "Shown", "gradient")
    page.wait_for_selector(".trouble:not(:empty)")
    assert "qkv view RUN" in page.locator(".trouble").inner_text()
    assert page.locator(".trouble").bounding_box()["y"] < page.locator(".mapcard").bounding_box()["y"]


@pytest.mark.parametrize("view", ["steps", "whatif"])
def test_views_of_single_heads_stay_when_the_window_changes(opened, run, tmp_path, view):
    path = tmp_path / "page.html"
    path.write_text(saved_page(run).text)
    page = opened(path.as_uri() + f"#view={view}&layer=1&head=mean")
    page.wait_for_selector(
        ".step" if view == "steps" else ".view-whatif .after, .view-whatif table, .view-whatif .strip"
    )
    page.set_viewport_size({"width": 500, "height": 700})
    page.wait_for_timeout(300)
    assert page.locator(".trouble:not(:empty)").count() == 0


def test_a_query_of_an_image_is_shown_on_its_patches(opened, served):
    names = ("[CLS]", *(f"{row},{column}" for row in range(1, 4) for column in range(1, 6)))
    generator = torch.Generator().manual_seed(9)
    layer = Layer("vit", "self", "image", "image", *torch.randn(3, 2, 16, 4, generator=generator))
    page = opened(served(Scene("an image", {"image": names}, (layer,))) + "#view=map&head=1&query=7&key=0")
    weights = layer.map().dense()[1, 7]
    page.wait_for_selector(".patches canvas")
    assert "3 × 5 patches · [CLS]" in page.locator(".patches figcaption").inner_text()
    size = page.evaluate("(({ width, height }) => [width, height])(document.querySelector('.patches canvas'))")
    assert size == [5, 3]
    data = "[...document.querySelector('.patches canvas').getContext('2d').getImageData(0, 0, 5, 3).data]"
    shown = torch.tensor(page.evaluate(data)).view(15, 4)
    expected = [color(float(weight / weights[1:].max())) for weight in weights[1:]]
    assert (shown[:, :3] - torch.tensor(expected)).abs().max() <= 3
    box = page.locator(".patches canvas").bounding_box()
    page.mouse.click(box["x"] + box["width"] * 4.5 / 5, box["y"] + box["height"] * 1.5 / 3)
    page.wait_for_function("location.hash.includes('key=10')")
    assert "2,5" in page.locator(".equation h2").inner_text()
