// The alignment of one layer: a range of its queries against a range of its keys.

import { alignment } from "./alignment.js";
import { latest, path, shownIn, sidesOf } from "./answers.js";
import { gradient, signed } from "./colors.js";
import { button, hinted, touched } from "./controls.js";
import { element, token } from "./dom.js";
import { equation } from "./equation.js";
import { clamp, count, figure, finite } from "./numbers.js";
import { strongest, weight } from "./sentence.js";
import { SIZE } from "./tiles.js";

const PIECE = 64; // tokens of each side at a time
const WHOLE = 96; // or all of them, if they are no more

/** @typedef {import("./shell.js").State} State */
/** @typedef {import("./sentence.js").Sentence} Sentence */
/** @typedef {import("./sentence.js").Focus} Focus */

/** @param {HTMLElement} home @param {import("./shell.js").Page} page @returns {import("./shell.js").View} */
export function alignments(home, page) {
  const readout = element("div.readout");
  const stage = hinted(element("div.stage"));
  const legend = element("div.legend");
  const turns = element("div.turns");
  const cell = equation(page, () => page.go({ query: null, key: null }));
  home.append(
    readout,
    element("div.split", element("div.mapcard.plain", stage, element("footer", legend, turns)), cell.card),
  );
  const run = latest(stage);

  const show = (state) => {
    cell.show(state);
    const layer = page.layers[Number(state.layer)];
    const rows = piece(state.rows, state.query, layer.rows);
    const columns = piece(state.columns, state.key ?? (layer.kind === "self" ? state.query : undefined), layer.columns);
    turns.replaceChildren(
      ...turner("queries", "rows", rows, layer.rows, page),
      ...turner("keys", "columns", columns, layer.columns, page),
    );
    const sides = sidesOf(page, layer).reverse();
    const fill = (sentence) => {
      const inside = state.query !== undefined && state.key !== undefined;
      alignment(sentence, {
        ramp: page.ramp(state),
        sides: /** @type {[string, string]} */ (sides),
        home: stage,
        kept: inside ? { target: Number(state.query) - rows.start, source: Number(state.key) - columns.start } : null,
        shown: (focus) => readout.replaceChildren(...said(sentence, focus)),
        keep: (focus, spoken) => {
          const whole = focus?.target == null || focus.source == null;
          const { query, key, ...rest } = state;
          /** @type {State} */
          const chosen = whole
            ? {}
            : { query: String(Number(focus.target) + rows.start), key: String(Number(focus.source) + columns.start) };
          page.note({ query: null, key: null, ...chosen, rows: rows.start || null, columns: columns.start || null });
          cell.show({ ...rest, ...chosen });
          if (spoken && !whole) page.say(spokenFor(sentence, focus));
        },
      });
      const bar = element("span.ramp");
      bar.style.background = gradient(page.ramp(state));
      legend.replaceChildren(
        page.shown(state),
        ...[element("span", figure(sentence.scale[0])), bar, element("span", figure(sentence.scale[1]))],
      );
    };
    run(cut(page, state, rows, columns), fill);
  };
  return { show };
}

/**
 * The range of tokens shown on one side.
 * @param {string | undefined} from @param {string | undefined} around @param {number} size
 * @returns {{ start: number, stop: number }}
 */
function piece(from, around, size) {
  if (size <= WHOLE) return { start: 0, stop: size };
  const start = clamp(Math.floor(Number(from ?? Number(around ?? 0) - PIECE / 2)) || 0, 0, size - PIECE);
  return { start, stop: start + PIECE };
}

/**
 * Buttons for the previous and next range.
 * @param {string} name @param {"rows" | "columns"} side @param {{ start: number, stop: number }} piece
 * @param {number} size @param {import("./shell.js").Page} page @returns {HTMLElement[]}
 */
function turner(name, side, { start, stop }, size, page) {
  if (stop - start === size) return [];
  const to = (place) => page.go({ [side]: clamp(place, 0, size - PIECE), query: null, key: null });
  return [
    element(
      "span.turn",
      button("‹", `Earlier ${name}`, () => to(start - PIECE)),
      `${name} ${count(start)} to ${count(stop - 1)} of ${count(size)}`,
      button("›", `Later ${name}`, () => to(start + PIECE)),
    ),
  ];
}

/**
 * Assemble the weights of a range from the tiles that contain it.
 * @param {import("./shell.js").Page} page @param {State} state @param {{ start: number, stop: number }} rows
 * @param {{ start: number, stop: number }} columns @returns {Promise<import("./sentence.js").Sentence>}
 */
async function cut(page, state, rows, columns) {
  const [height, width] = [rows.stop - rows.start, columns.stop - columns.start];
  const weights = new Float32Array(height * width);
  for (let row = Math.floor(rows.start / SIZE); row * SIZE < rows.stop; row++) {
    for (let column = Math.floor(columns.start / SIZE); column * SIZE < columns.stop; column++) {
      const { layer, head, how } = state;
      const grid = await page.source.grid(path("tile", { layer, head, level: 0, row, column, how, quantity: shownIn(state) }));
      for (let r = Math.max(rows.start, row * SIZE); r < Math.min(rows.stop, row * SIZE + grid.rows); r++) {
        const from = Math.max(columns.start, column * SIZE);
        const to = Math.min(columns.stop, column * SIZE + grid.columns);
        const line = (r - row * SIZE) * grid.columns - column * SIZE;
        weights.set(grid.values.subarray(line + from, line + to), (r - rows.start) * width + from - columns.start);
      }
    }
  }
  const layer = page.layers[Number(state.layer)];
  const [source, target] = [page.sequences[layer.keys], page.sequences[layer.queries]];
  await Promise.all([source.need(columns.start, columns.stop), target.need(rows.start, rows.stop)]);
  const hidden = (tokens, at) => state.special === "hide" && tokens.at(at)?.special === true;
  weights.forEach((_, at) => {
    const [row, column] = [rows.start + Math.floor(at / width), columns.start + (at % width)];
    if (hidden(target, row) || hidden(source, column)) weights[at] = 0;
  });
  const noted = (tokens, { start, stop }) =>
    Array.from({ length: stop - start }, (_, at) => (hidden(tokens, start + at) ? "hidden" : (tokens.at(start + at)?.note ?? "")));
  const low = weights.reduce((least, value) => Math.min(least, finite(value)), 0);
  const high = weights.reduce((most, value) => Math.max(most, finite(value)), low + 1e-30);
  const of = (tokens, { start, stop }, what) =>
    Array.from({ length: stop - start }, (_, at) => tokens.at(start + at)?.[what] ?? "");
  return {
    source: of(source, columns, "shown"),
    target: of(target, rows, "shown"),
    notes: { source: noted(source, columns), target: noted(target, rows) },
    links: /** @type {import("./sentence.js").Sentence["links"]} */ (state.links),
    scale: state.quantity === "gradient" ? [signed(low, high).low, signed(low, high).high] : [low, high],
    log: state.log === "1" && low === 0,
    weights,
  };
}

/** @param {Sentence} sentence @param {Focus | null} focus @returns {(Node | string)[]} */
function said(sentence, focus) {
  const { target = null, source = null } = focus ?? {};
  if (!focus || sentence.weights.length === 0)
    return [
      touched()
        ? "Touch a token or a line. Touch a cell to see its equation."
        : "Hover over a token, a line or a cell. Click a cell to see its equation.",
    ];
  if (target !== null && source !== null) {
    const number = element("output", figure(weight(sentence, target, source)));
    return [
      token(sentence.target[target], "chip"),
      element("span.arrow", "→"),
      token(sentence.source[source], "chip"),
      number,
    ];
  }
  const name = target === null ? sentence.source[source ?? 0] : sentence.target[target];
  const found = strongest(sentence, focus, 4).map((cell) =>
    element("span.pair", token(cell.name, "chip"), element("output", figure(cell.value))),
  );
  return [token(name, "chip"), element("span.arrow", target === null ? "←" : "→"), ...found];
}

/** @param {Sentence} sentence @param {Focus} focus @returns {string} */
function spokenFor(sentence, focus) {
  const [t, s] = [focus.target ?? 0, focus.source ?? 0];
  return `Query ${t}, ${sentence.target[t]}; key ${s}, ${sentence.source[s]}: ${figure(weight(sentence, t, s))}`;
}
