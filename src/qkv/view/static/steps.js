// The computation of one token, step by step, with its numbers.

import { latest, path, queryOf } from "./answers.js";
import { ribbon } from "./controls.js";
import { element, formula, token } from "./dom.js";
import { short } from "./numbers.js";
import { WRITTEN, strip } from "./vectors.js";

/** @typedef {{ name: string, symbol: string, equation: string, kind: string, values: any }} Numbers_ */
/** @typedef {Numbers_ & { labels?: string[], shape?: [number, number], scale?: string, note?: string }} Stage */

/** @param {HTMLElement} home @param {import("./shell.js").Page} page @returns {import("./shell.js").View} */
export function steps(home, page) {
  const picker = element("div");
  const flow = element("ol.flow");
  home.append(picker, flow);
  const run = latest(flow);
  let shown = "";
  return {
    show: (state) => {
      const { layer, head, colors } = state;
      const query = queryOf(page, state);
      const asked = path("steps", { layer, head, query });
      if (`${asked} ${colors}` === shown) return;
      shown = `${asked} ${colors}`;
      const { queries, equation } = page.layers[Number(layer)];
      ribbon(picker, page.sequences[queries], "token", Number(query), (place) => page.go({ query: place }));
      flow.setAttribute("aria-busy", "true");
      const fill = ({ stages }) => {
        flow.removeAttribute("aria-busy");
        flow.replaceChildren(
          element("li.whole", formula(equation)),
          ...stages.map((each) => stage(each, page.ramp(state))),
        );
      };
      run(page.source.json(asked), fill);
    },
  };
}

/** @param {Stage} given @param {import("./colors.js").Color[]} ramp @returns {HTMLElement} */
function stage({ name, symbol, equation, kind, labels = [], values, shape, scale, note }, ramp) {
  const numbers = /** @type {(number | null)[]} */ (Array.isArray(values) ? values.flat() : [values]);
  const rows = shape ? shape[0] : 1;
  const columns = numbers.length / rows;
  const label = (place) => {
    if (kind === "matrix")
      return `${labels[Math.floor(place / columns)] ?? Math.floor(place / columns)} [${place % columns}]`;
    return labels[place] ?? `[${place}]`;
  };
  const names = kind === "row" && labels.length === numbers.length ? labels : undefined;
  const body =
    kind === "number"
      ? element("output.number", short(numbers[0]))
      : strip({
          values: numbers,
          rows,
          label,
          names: kind === "matrix" && labels.length === rows ? labels : names,
          ramp: scale === "weight" ? ramp : undefined,
          name,
          scaled: true,
        }).node;
  const told = [equation === symbol ? "" : element("p.formula", equation), note ? element("p.note", note) : ""];
  return element(
    "li.step",
    element("div.what", element("h3", element("b", symbol), name), ...told),
    element("div.numbers", body, names && names.length > WRITTEN ? keys(names, numbers) : ""),
  );
}

/**
 * The largest values of a row with their tokens.
 * @param {string[]} labels @param {(number | null)[]} values @returns {HTMLElement}
 */
function keys(labels, values) {
  const found = values
    .map((value, place) => ({ value, text: labels[place] }))
    .filter(({ value }) => value !== null)
    .sort((a, b) => Number(b.value) - Number(a.value))
    .slice(0, 5)
    .map(({ value, text }) => element("span.pair", token(text, "chip"), element("output", short(value))));
  return element("p.largest", "largest ", ...found);
}
