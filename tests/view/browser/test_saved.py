"""A scene saved as one file, opened from disk without any network."""

from dataclasses import replace

import pytest

from qkv.view.offline import page as saved
from qkv.view.showing import notebook

_READY = {
    "steps": ".flow .step",
    "map": ".field-of-view canvas[data-state=exact]",
    "alignment": ".grid .map canvas",
    "graph": ".graph .node",
    "heads": ".gallery .head",
}


@pytest.fixture(scope="module")
def file(scene, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "scene.html"
    path.write_text(saved(scene).text, encoding="utf-8")
    return path.as_uri()


@pytest.mark.slow
@pytest.mark.parametrize("view", _READY)
def test_a_saved_page_shows_what_the_viewer_shows(opened, served, scene, file, view):
    said = []
    for address in (file, served(scene)):
        page = opened(f"{address}#view={view}&layer=1&head=1&query=4&key=2", offline=address == file)
        page.wait_for_selector(_READY[view])
        page.wait_for_timeout(500)
        said.append(page.locator(".gallery, .mapcard, .readout, .targets").all_inner_texts())
    assert said[0] == said[1]


@pytest.mark.parametrize(("head", "said"), [(None, "mean"), (1, "1")])
def test_a_page_opens_on_the_map_that_the_scene_names(opened, served, scene, head, said, tmp_path):
    scene = replace(scene, opening=(scene.layers[1].name, head))
    file = tmp_path / "named.html"
    file.write_text(saved(scene).text, encoding="utf-8")
    for address in (file.as_uri(), served(scene)):
        page = opened(address, offline=address == file.as_uri())
        page.wait_for_selector(_READY["map"])
        chosen = page.locator("select").evaluate_all("fields => fields.map(({ value }) => value)")
        assert chosen[:2] == ["1", said]


def test_a_saved_page_tries_other_mechanisms(opened, file):
    page = opened(f"{file}#view=whatif&layer=1&query=4", offline=True)
    page.wait_for_selector(".comparison .linked")
    page.get_by_label("normalizer").last.select_option("softmax")
    page.wait_for_function(
        "() => !/moved between keys: 0$/.test(document.querySelector('.comparison').innerText.split('\\n')[0])"
    )
    assert page.locator(".whole:visible").count() == 0  # the model itself is not in the page


def test_a_page_without_room_for_steps_says_so(opened, scene, tmp_path):
    path = tmp_path / "small.html"
    base = len(saved(scene, 0).text) / 1e6
    path.write_text(saved(scene, base + 0.0015).text, encoding="utf-8")
    page = opened(path.as_uri(), offline=True)
    page.wait_for_selector(_READY["map"])
    assert "lacks" in page.locator(".missing").inner_text()
    assert "layers" in page.locator(".missing").inner_text()
    chosen, options = page.get_by_label("Layer").evaluate(
        "field => [field.value, [...field.options].map((o) => o.text)]"
    )
    assert any("not in this page" in text for text in options)
    assert "not in this page" not in options[int(chosen)]
    page.get_by_role("link", name="Steps").click()
    page.wait_for_selector(".trouble:visible")
    assert "qkv view" in page.locator(".trouble:visible").inner_text()


@pytest.mark.slow
def test_hostile_tokens_run_nothing_in_a_saved_page(opened, hostile_scene, tmp_path):
    path = tmp_path / "hostile.html"
    path.write_text(saved(hostile_scene).text, encoding="utf-8")
    for view, ready in _READY.items():
        page = opened(f"{path.as_uri()}#view={view}&layer=2", offline=True)
        page.wait_for_selector(
            f"{ready}, .home .trouble:not(:empty)"
        )  # with this many tokens the page carries no steps
        assert page.evaluate("typeof pwned") == "undefined"
        assert page.evaluate("document.querySelectorAll('script, style, img, iframe, base, object').length") == 3


@pytest.mark.slow
def test_a_notebook_cell_unpacks_itself(opened, scene, tmp_path):
    """The cell alone, as a notebook shows it: a frame in a sandbox, whose page comes compressed."""
    path = tmp_path / "cell.html"
    path.write_text(f"<!doctype html><meta charset=utf-8>{notebook(scene)}", encoding="utf-8")
    assert path.stat().st_size < 150_000
    page = opened(path.as_uri(), offline=True)
    frame = page.frame_locator("iframe")
    frame.locator(_READY["map"]).first.wait_for()
    frame.get_by_role("tab", name="Steps").or_(frame.get_by_role("link", name="Steps")).first.click()
    frame.locator(".flow .step").first.wait_for()
    frame.get_by_role("link", name="Heads").click()
    frame.locator(".head a").first.click()
    frame.locator(_READY["map"]).first.wait_for()
