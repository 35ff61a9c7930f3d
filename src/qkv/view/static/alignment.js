// An alignment: two token lists, the links between them and the heat map, which share one selection.

import { element } from "./dom.js";
import { heatmap } from "./heatmap.js";
import { links } from "./links.js";

/** @typedef {import("./sentence.js").Sentence} Sentence */
/** @typedef {import("./sentence.js").Focus} Focus */

/**
 * @typedef {object} Look
 * @property {import("./colors.js").Color[]} ramp
 * @property {[string, string]} sides names of the attended and the attending side
 * @property {HTMLElement} home the container; it scrolls
 * @property {Focus | null} kept the initial selection
 * @property {(focus: Focus | null) => void} shown called with the current selection
 * @property {(focus: Focus | null, spoken: boolean) => void} keep called with a selection to keep
 */

/**
 * Build an alignment in its container.
 * @param {Sentence} sentence @param {Look} look
 */
export function alignment(sentence, look) {
  const { cell, pitch } = heights(sentence);
  /** @type {Focus | null} */
  let hovered = null;
  let kept = look.kept;
  const refresh = () => {
    const focus = hovered ?? kept;
    for (const part of [map, sides]) part.show(focus);
    look.shown(focus);
  };
  /** @type {import("./heatmap.js").Listener} */
  const listener = {
    hover: (focus) => {
      if (focus?.target === hovered?.target && focus?.source === hovered?.source) return;
      hovered = focus;
      refresh();
    },
    keep: (focus, spoken) => {
      [kept, hovered] = [focus, null];
      look.keep(focus, spoken);
      refresh();
    },
  };
  const map = heatmap(sentence, look.ramp, listener);
  const sides = links(sentence, { source: pitch, target: cell }, listener);
  const empty = sentence.weights.length === 0;
  const grid = element(
    "div.grid",
    element("span.caption.first", look.sides[0]),
    element("span.caption.second", look.sides[1]),
    map.columns,
    sides.sources,
    sides.links,
    sides.targets,
    empty ? element("p.empty", "No tokens to attend to.") : map.map,
    element("span.caption.across", `${look.sides[0]} →`),
  );
  for (const [name, value] of Object.entries({ cell, pitch, wide: cell }))
    grid.style.setProperty(`--${name}`, `${value}px`);
  grid.style.setProperty("--across", String(sentence.source.length));
  grid.style.setProperty("--down", String(sentence.target.length));
  look.home.replaceChildren(grid);
  const names = [...map.columns.querySelectorAll("bdi")];
  for (const name of names) name.classList.toggle("single", [...(name.textContent ?? "")].length === 1);
  const longest = Math.max(0, ...names.map((name) => (name.classList.contains("single") ? 18 : name.offsetWidth)));
  grid.style.setProperty("--longest", `${longest}px`);
  const across = wide(look.home, map.columns, sentence.source.length, cell, longest / 2);
  grid.style.setProperty("--wide", `${across}px`);
  grid.classList.toggle("upright", longest <= across);
  refresh();
}

/**
 * Choose row heights for the sentence; source tokens are spread over the height of the map.
 * @param {Sentence} sentence @returns {{ cell: number, pitch: number }} pixels
 */
function heights({ source, target }) {
  const cell = Math.round(Math.min(38, Math.max(18, 560 / Math.max(target.length, 1))));
  const spread = (target.length * cell) / Math.max(1, source.length);
  return { cell, pitch: Math.min(1.5 * cell, Math.max(16, spread)) };
}

/**
 * Choose column widths for the page.
 * @param {HTMLElement} home @param {HTMLElement} columns @param {number} count @param {number} cell
 * @param {number} overhang of the last slanted label @returns {number} pixels
 */
function wide(home, columns, count, cell, overhang) {
  const padding = Number.parseFloat(getComputedStyle(home).paddingInlineEnd);
  const left = columns.getBoundingClientRect().left - home.getBoundingClientRect().left + home.scrollLeft;
  const room = home.clientWidth - left - padding - overhang;
  return Math.floor(Math.min(1.25 * cell, Math.max(18, room / Math.max(1, count))));
}
