"""Running the JavaScript of pages in a browser, without a page around it."""

from typing import Any

import torch

from qkv.view.bundle import script_of
from qkv.view.live import live_data


class JavaScript:
    """The modules of pages, loaded in a browser.

    `call("module.js", "f", x)` is f(x) of that module.
    """

    def __init__(self, browser: Any) -> None:
        self.page = browser.new_page()
        for entry in ("numeric.js", "computed.js", "answering.js", "recorded.js"):
            self.page.evaluate(
                f"() => {{ {script_of(entry)} globalThis.m = Object.assign(globalThis.m ?? {{}}, modules); }}"
            )

    def call(self, module: str, function: str, *given: Any) -> Any:
        return self.page.evaluate("([module, f, given]) => m[module][f](...given)", [module, function, list(given)])

    def evaluate(self, text: str, given: Any = None) -> Any:
        return self.page.evaluate(text, given)

    def open_model(self, loaded: Any) -> Any:
        """Open a model as its page does, under the name `model`; return the same model in Python, with its weights."""
        rounded, live = loaded.in_page()
        self.page.evaluate(
            "async (data) => { globalThis.model = await m['answering.js'].model(data); }",
            live_data(live) | {"opening": ("", None)},
        )
        return rounded

    def run(self, text: str, **wanted: Any) -> Any:
        return self.page.evaluate(_RUN, [text, wanted])


_RUN = """([text, wanted]) => {
  const found = m["answering.js"].run(model, text, wanted);
  const { rowOf } = m["network.js"];
  const weights = (layer) => layer.queries.map((one, h) => one.map((_, i) => [...rowOf(layer, h, i).weights]));
  const { rows, text: said } = found.answer();
  return {
    ids: found.ids, written: found.written, said, finished: found.finished, rows: rows.map((row) => [...row]),
    layers: Object.fromEntries(found.layers.map((layer) => [layer.name, weights(layer)])), sequences: found.sequences,
  };
}"""


def largest_difference(one: Any, other: torch.Tensor) -> float:
    return float((torch.tensor(one, dtype=torch.float64) - other.double()).abs().max())
