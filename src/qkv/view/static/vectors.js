// Vectors, rows and small matrices as colored cells; hovering or arrow keys show the numbers.

import { colorAt, gradient, inkOn } from "./colors.js";
import { hinted } from "./controls.js";
import { element, token } from "./dom.js";
import { clamp, finite, short } from "./numbers.js";

export const WRITTEN = 16; // so many numbers or fewer are written into their cells
const [ABOVE, BELOW] = [
  [214, 137, 16],
  [58, 110, 190],
]; // positive, negative: to be told apart by all eyes

/**
 * @typedef {object} Numbers
 * @property {(number | null)[]} values row by row; null for none, as for masked keys
 * @property {number} [rows]
 * @property {(place: number) => string} [label] of a value
 * @property {string[]} [names] labels under the values, if they fit; of a matrix, beside its rows
 * @property {import("./colors.js").Color[]} [ramp] for weights; omitted for signed numbers
 * @property {number} [largest] end of the scale; the largest value by default
 * @property {string} name
 * @property {boolean} [bare] whether to omit numbers in cells
 * @property {boolean} [scaled] whether to show the scale of the colors
 * @property {(place: number | null) => void} [pointed] called with the hovered value
 */

/** @typedef {{ node: HTMLElement, point: (place: number | null) => void }} Strip */

/** @param {Numbers} numbers @returns {Strip} */
export function strip({ values, rows = 1, label, names, ramp, largest, name, bare, scaled, pointed }) {
  const columns = Math.max(1, values.length / rows);
  const top = largest ?? values.reduce((most, value) => Math.max(most ?? 0, Math.abs(finite(value))), 0);
  const color = (value) =>
    ramp ? [...colorAt(ramp, clamp(value / (top || 1), 0, 1)), 255] : signed(value / (top || 1));
  const canvas = drawn(values, rows, columns, color);
  const cursor = element("i.at");
  const written = rows === 1 && columns <= WRITTEN && !bare;
  const cells = element(
    "div.cells",
    { tabindex: 0, role: "application", "aria-roledescription": "numbers" },
    canvas,
    cursor,
  );
  cells.setAttribute(
    "aria-label",
    `${name}: ${values.length} numbers${written ? `: ${values.map(short).join(", ")}` : ". Use arrow keys to move."}`,
  );
  cells.style.setProperty("--columns", String(columns));
  cells.style.setProperty("--rows", String(rows));
  if (written) {
    for (const value of values) {
      const cell = element("span", short(value));
      cell.style.color = inkOn(value === null || Number.isNaN(value) ? [0, 0, 0, 0] : color(value));
      cells.append(cell);
    }
  }
  if (written && names) cells.append(...names.map((text) => token(text, "under")));
  const said = element("output.said");
  const beside = rows > 1 && names ? [element("div.rows", ...names.map((text) => element("span", token(text))))] : [];
  const table = element("div.table", ...beside, written ? hinted(element("div.wide", cells)) : cells);
  const node = element(written ? "div.strip.written" : "div.strip", table, scaled ? scaleOf(ramp, top) : "", said);
  if (beside.length > 0) node.classList.add("named");
  /** @type {number | null} */
  let current = null;
  const point = (place) => {
    current = place;
    cursor.hidden = place === null;
    said.textContent =
      place === null || place >= values.length ? "" : `${label ? label(place) : `[${place}]`}  ${short(values[place])}`;
    if (place === null) return;
    cursor.style.setProperty("--row", String(Math.floor(place / columns)));
    cursor.style.setProperty("--column", String(place % columns));
    said.style.setProperty("--column", String((place % columns) / columns));
  };
  const tell = (place) => {
    point(place);
    pointed?.(place);
  };
  cells.addEventListener("pointermove", (event) => {
    const box = cells.getBoundingClientRect();
    const [column, row] = [
      ((event.clientX - box.left) / box.width) * columns,
      ((event.clientY - box.top) / box.height) * rows,
    ];
    tell(clamp(Math.floor(row), 0, rows - 1) * columns + clamp(Math.floor(column), 0, columns - 1));
  });
  cells.addEventListener("pointerleave", () => tell(null));
  cells.addEventListener("blur", () => tell(null));
  cells.addEventListener("keydown", (event) => {
    const step = {
      ArrowRight: 1,
      ArrowLeft: -1,
      ArrowDown: columns,
      ArrowUp: -columns,
      Home: -values.length,
      End: values.length,
    }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    tell(current === null ? 0 : clamp(current + step, 0, values.length - 1));
    cursor.scrollIntoView({ block: "nearest", inline: "nearest" });
  });
  point(null);
  return { node, point };
}

/** @param {import("./colors.js").Color[] | undefined} ramp @param {number} top end of the scale @returns {HTMLElement} */
function scaleOf(ramp, top) {
  const bar = element("span.ramp");
  const steps = Array.from({ length: 9 }, (_, at) => {
    const [red, green, blue, alpha] = signed(at / 4 - 1);
    return `rgb(${red} ${green} ${blue} / ${alpha / 255})`;
  });
  bar.style.background = ramp ? gradient(ramp) : `linear-gradient(90deg, ${steps.join(", ")})`;
  return element("div.legend.small", short(ramp ? 0 : -top), bar, short(top));
}

/** @param {number} part −1 to 1 @returns {number[]} red, green, blue, alpha */
function signed(part) {
  return [...(part < 0 ? BELOW : ABOVE), Math.round(235 * Math.min(1, Math.abs(part)) ** 0.7)];
}

/**
 * @param {(number | null)[]} values @param {number} rows @param {number} columns
 * @param {(value: number) => number[]} color @returns {HTMLCanvasElement}
 */
function drawn(values, rows, columns, color) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [columns, rows];
  const image = new ImageData(columns, rows);
  values.forEach((value, at) => {
    if (value !== null && !Number.isNaN(value)) image.data.set(color(value), 4 * at);
  });
  canvas.getContext("2d")?.putImageData(image, 0, 0);
  return canvas;
}
