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
        said.append(page.locator(".flow, .gallery, .equation, .targets").all_inner_texts())
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
        assert chosen == ["1", said]


@pytest.mark.slow
def test_a_saved_page_says_what_only_the_running_viewer_has(opened, file):
    page = opened(f"{file}#view=whatif", offline=True)
    page.wait_for_selector(".home .trouble")
    assert "qkv view" in page.locator(".home .trouble").inner_text()
    assert page.locator(".panel, select, input").count() == 0
    assert "What if" not in page.locator(".tabs").inner_text()


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
