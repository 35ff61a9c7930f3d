"""A trained run as a page that computes: its model, its tokenizer, and how its answers change with weights of int8."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qkv.data.phrases import generate
from qkv.errors import ConfigError, setting
from qkv.tasks.example_run import SENTENCES, is_example
from qkv.tasks.load import load
from qkv.tasks.members import expect_single
from qkv.tasks.task import ComputesInPage
from qkv.tasks.text_attention import expect_attention
from qkv.tasks.viewing import text_of
from qkv.view.answers.opening import first_shown
from qkv.view.live import LivePage, lacks, live_page

CHECKED = 200
"""Maximum number of texts whose answers are compared with those of the weights before rounding."""
_SHOWN = 4
"""Maximum number of examples that the page offers."""


def live(loaded: Any, texts: Sequence[str], *, title: str = "") -> LivePage:
    """Build a page that runs a trained model in any browser, offline: type a text, and the model answers.

    All views of `qkv view` and what-if work on it. It has the weights of the model, as int8: whoever has the page has
    the model.

    Args:
        loaded: a translator, a language model or a classifier, from `qkv.load`.
        texts: examples, the first of which is shown first; up to 200 of them are answered with the weights before and
            after rounding, and the page says how many answers differ.
        title: the name of the page.

    Returns:
        The page: a notebook shows it, `save` writes it.

    Raises:
        UnsupportedError: the model has a part that a page cannot compute; the message names it.
        ConfigError: there is no text, the model has no attention, or the page would be larger than 50 MB.
        DataError: a text is too long for the model.

    Example:
        >>> import qkv
        >>> page = qkv.live(qkv.load("example"), ["Der Hund schläft ."])
        >>> page.checked, page.differ, "DecompressionStream" in page.text
        (1, 0, True)
    """
    checked = list(dict.fromkeys(text for text in texts if text.strip()))[:CHECKED]
    if not checked:
        hint = "Give " + setting("text") + " or " + setting("file") + ", with one text a line."
        raise ConfigError(setting("live"), "a text to open on", "none", hint)
    expect_attention(loaded.model)
    if not isinstance(loaded, ComputesInPage):
        raise lacks(f"a {type(loaded).__name__}", "Give a run that translates, writes or classifies text.")
    rounded, model = loaded.in_page()
    before, after = (run.page_answers(checked) for run in (loaded, rounded))
    differ = sum(one != other for one, other in zip(before, after, strict=True))
    scene = rounded.scene(checked[0])
    number, head = first_shown(scene)
    compared = {"checked": len(checked), "differ": differ, "opening": (scene.layers[number].name, head)}
    return LivePage(live_page(model, checked[:_SHOWN], title, compared), title or "qkv", len(checked), differ)


def write_live_page(run: Path, path: Path, text: str | None, file: Path | None, device: str) -> str:
    """Write the page of a run.

    Args:
        run: run folder.
        path: the file to write.
        text, file: examples: one text, a file of one text a line, or both; the packaged run has its own.
        device: compute device.

    Returns:
        A sentence that describes the file.

    Raises:
        ConfigError: there is no text; others as for `live`.
        QkvError: as for `qkv.load`.
    """
    texts = [] if text is None else [text]
    if file is not None:
        texts += [line for line in text_of(file).split("\n") if line.strip()][:CHECKED]
    if is_example(run):
        texts = list(dict.fromkeys([*(texts or SENTENCES), *(pair.source for pair in generate(CHECKED, seed=1))]))
    expect_single(run)
    page = live(load(run, device), texts, title=run.name)
    page.save(path)
    return f"{path}: a page that computes, {len(page.text) / 1e6:.1f} MB. Whoever has it has the model's weights."
