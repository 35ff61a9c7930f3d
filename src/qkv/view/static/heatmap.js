// The heat map: one pixel per weight, scaled by the browser, with a cursor moved by arrow keys.

import { painted } from "./colors.js";
import { element, token } from "./dom.js";
import { figure } from "./numbers.js";
import { fraction, weight } from "./sentence.js";

/** @typedef {import("./sentence.js").Sentence} Sentence */
/** @typedef {import("./sentence.js").Focus} Focus */

/**
 * @typedef {object} Listener what the views report
 * @property {(focus: Focus | null) => void} hover
 * @property {(focus: Focus | null, spoken: boolean) => void} keep
 */

/**
 * Build the map with its column labels.
 * @param {Sentence} sentence @param {import("./colors.js").Color[]} ramp @param {Listener} listener
 * @returns {{ columns: HTMLElement, map: HTMLElement, show: (focus: Focus | null) => void }}
 */
export function heatmap(sentence, ramp, listener) {
  const [rows, width] = [sentence.target.length, sentence.source.length];
  const [low, high] = sentence.scale;
  const labels = sentence.source.map((text) => element("li", token(text)));
  const columns = element("ol.columns", { "aria-hidden": "true" }, ...labels);
  const bands = { row: element("div.band"), column: element("div.band") };
  const cursor = element("div.cursor");
  const map = element(
    "div",
    {
      class: "map",
      tabindex: 0,
      role: "application",
      "aria-roledescription": "heat map",
      "aria-label": `${rows} target rows, ${width} source columns. Use arrow keys to move between cells.`,
    },
    painted({ rows, columns: width, values: sentence.weights }, ramp, { low, high, log: sentence.log ?? false }),
    element("div.mesh"),
    bands.row,
    bands.column,
    cursor,
  );

  /** @type {Focus | null} */
  let current = null;

  /** @param {Focus | null} focus */
  const show = (focus) => {
    current = focus;
    const { target = null, source = null } = focus ?? {};
    place(bands.row, target, 0, 1, width);
    place(bands.column, 0, source, rows, 1);
    place(cursor, source === null ? null : target, source, 1, 1);
    if (target !== null && source !== null) cursor.dataset.weight = figure(weight(sentence, target, source));
    cursor.dataset.below = String(target === 0);
    labels.forEach((label, s) => {
      label.classList.toggle("on", s === source);
      const share = target === null ? 0 : fraction(sentence, weight(sentence, target, s));
      label.style.setProperty("--share", String(share));
    });
  };

  const cellUnder = (event) => {
    const box = map.getBoundingClientRect();
    return {
      target: limited(((event.clientY - box.top) / box.height) * rows, rows),
      source: limited(((event.clientX - box.left) / box.width) * width, width),
    };
  };
  map.addEventListener("pointermove", (event) => listener.hover(cellUnder(event)));
  map.addEventListener("pointerleave", () => listener.hover(null));
  map.addEventListener("click", (event) => listener.keep(cellUnder(event), false));
  map.addEventListener("keydown", (event) => {
    const next = stepped(event, current, rows, width);
    if (next === undefined) return;
    event.preventDefault();
    listener.keep(next, true);
    if (next) cursor.scrollIntoView({ block: "nearest", inline: "nearest" });
  });
  return { columns, map, show };
}

/**
 * Place a box over cells, or hide it.
 * @param {HTMLElement} box @param {number | null} top @param {number | null} left @param {number} height
 * @param {number} width
 */
function place(box, top, left, height, width) {
  box.hidden = top === null || left === null;
  for (const [name, value] of Object.entries({ top, height })) {
    box.style.setProperty(name, `calc(var(--cell) * ${value ?? 0})`);
  }
  for (const [name, value] of Object.entries({ left, width })) {
    box.style.setProperty(name, `calc(var(--wide) * ${value ?? 0})`);
  }
}

/** @param {number} place @param {number} count @returns {number} */
function limited(place, count) {
  return Math.max(0, Math.min(count - 1, Math.floor(place)));
}

/**
 * The result of a key press: a cell, no selection (null), or undefined if the key is not handled.
 * @param {KeyboardEvent} event @param {Focus | null} focus @param {number} rows @param {number} width
 * @returns {Focus | null | undefined}
 */
function stepped({ key, ctrlKey, altKey, metaKey }, focus, rows, width) {
  if (altKey || metaKey) return undefined;
  if (key === "Escape") return null;
  const far = Math.max(rows, width);
  /** @type {Record<string, [number, number]>} */
  const steps = {
    ArrowUp: [-1, 0],
    ArrowDown: [1, 0],
    ArrowLeft: [0, -1],
    ArrowRight: [0, 1],
    Home: [ctrlKey ? -far : 0, -far],
    End: [ctrlKey ? far : 0, far],
  };
  if (!(key in steps)) return undefined;
  if (!focus) return { target: 0, source: 0 };
  const [down, right] = steps[key];
  return { target: limited((focus.target ?? 0) + down, rows), source: limited((focus.source ?? 0) + right, width) };
}
