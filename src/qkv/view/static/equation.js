// The equation of one cell, with its numbers filled in.

import { latest, nameOf, path, shownIn } from "./answers.js";
import { button } from "./controls.js";
import { element, formula, token } from "./dom.js";
import { grid } from "./patches.js";
import { digits, figure } from "./numbers.js";

/**
 * Build the card; it is hidden until a cell is selected.
 * @param {import("./shell.js").Page} page @param {() => void} closed called when the user clears the selection
 * @returns {{ card: HTMLElement, show: (state: import("./shell.js").State) => void }}
 */
export function equation(page, closed) {
  const card = element("section.equation", { "aria-label": "Equation of the selected cell" });
  const lines = element("div");
  const run = latest(lines);
  let shown = "";
  const show = (/** @type {import("./shell.js").State} */ state) => {
    const { layer, head, query, key } = state;
    card.hidden = query === undefined || key === undefined;
    const asked = card.hidden ? "" : path("cell", { layer, head, query, key });
    const seen = `${asked} ${shownIn(state)} ${state.colors} ${state.log}`;
    if (seen === shown) return;
    shown = seen;
    if (card.hidden) return;
    const { queries, keys, equation } = page.layers[Number(layer)];
    const title = element(
      "h2",
      token(nameOf(page.sequences[queries], Number(query)), "chip"),
      " attends to ",
      token(nameOf(page.sequences[keys], Number(key)), "chip"),
    );
    card.replaceChildren(
      element("header", title, button("×", "Clear the selection", closed)),
      formula(equation),
      lines,
    );
    const fill = (/** @type {any} */ [answer, patches]) => {
      const result = element("p.result", "weight ", element("output", figure(answer.weight)));
      lines.replaceChildren(patches, element("dl", ...answer.lines.flatMap(line)), result);
    };
    run(Promise.all([page.source.json(asked), grid(page, state)]), fill);
  };
  return { card, show };
}

/** @param {{ equation: string, filled: string, value: number | null }} line @returns {HTMLElement[]} */
function line({ equation, filled, value }) {
  const result = value === null ? [] : [" = ", element("output", digits(value))];
  const said = value !== null && filled.startsWith("[") ? "" : `= ${filled}`; // followed by the number itself
  return [element("dt", equation), element("dd", said, ...result)];
}
