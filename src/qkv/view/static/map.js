// The map: the whole matrix, at any zoom.

import { DECADES, gradient } from "./colors.js";
import { button, touched } from "./controls.js";
import { element, token } from "./dom.js";
import { equation } from "./equation.js";
import { levelAt } from "./mapdraw.js";
import { matrix } from "./matrix.js";
import { clamp, count, figure } from "./numbers.js";
import { NEAR, draw, margins } from "./picture.js";
import { progress } from "./progress.js";
import { LARGEST, viewport, zoomed } from "./viewport.js";

/** @typedef {import("./matrix.js").Matrix} Matrix */
/** @typedef {import("./matrix.js").Cell} Cell */
/** @typedef {import("./colors.js").Color[]} Ramp */

const KEYS = "Arrow keys move, Enter selects a cell, plus and minus zoom, 0 shows all, Escape clears the selection.";
const NOTED = 250; // milliseconds after a move until the address says it

/** @param {HTMLElement} home @param {import("./shell.js").Page} page @returns {import("./shell.js").View} */
export function map(home, page) {
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { tabIndex: 0, role: "application", ariaLabel: `Map of the weights. ${KEYS}` });
  const field = element("div.field-of-view", canvas);
  const [readout, legend] = [element("div.readout"), element("div.legend")];
  const trouble = element("p.trouble", { role: "alert" });
  let [waiting, noting] = [0, 0];

  const drawn = () => {
    waiting = 0;
    if (!own.tiles || !canvas.isConnected) return;
    const ramp = page.ramp(own.state);
    const { level, seen } = draw({ canvas, field, view, own, plot: plot(), ramp });
    const [{ low, high }, { left, top }] = [own.scale(level), plot()];
    Object.assign(canvas.dataset, {
      left,
      top,
      x: view.x,
      y: view.y,
      scale: view.scale,
      level,
      low,
      high,
      state: seen,
    });
    computing.seen(seen);
    readout.replaceChildren(...said(own, level));
    legend.replaceChildren(...told(own, level, ramp, page.shown));
  };
  const soon = () => {
    if (waiting === 0) waiting = requestAnimationFrame(drawn);
  };
  const arrived = () => {
    if (page.source.asks) trouble.replaceChildren(); // it answers again
    soon();
  };
  const own = matrix(page, { arrived, failed: ({ message }) => trouble.replaceChildren(message) });
  const plot = () => {
    const { left, top, right, bottom } = margins(field);
    const width = Math.max(40, field.clientWidth - left - right);
    const spare = Math.max(0, width - own.size.columns * view.scale); // what is narrower stands in the middle
    return { left: left + spare / 2, top, width, height: Math.max(40, field.clientHeight - top - bottom) };
  };
  const view = viewport(canvas, own.size, plot, {
    moved: () => {
      soon();
      clearTimeout(noting);
      noting = setTimeout(
        () => page.note({ at: [view.x, view.y, view.scale].map((part) => Number(part.toPrecision(7))).join("_") }),
        NOTED,
      );
    },
    click: ({ row, column }) => page.go({ query: row, key: column }),
  });
  const cell = equation(page, () => page.go({ query: null, key: null }));
  const computing = progress(page, () => own.tiles?.refresh(), soon);
  const zooms = element(
    "div.zooms",
    button("+", "Nearer", () => view.zoom(1.6)),
    button("−", "Farther", () => view.zoom(1 / 1.6)),
    button("⤢", "Show all", () => view.fit()),
  );
  const card = element("div.mapcard", field, element("footer", zooms, legend, computing.home));
  home.append(trouble, readout, element("div.split", card, cell.card));
  listen(canvas, own, view, page, soon);
  addEventListener("themed", soon);
  return {
    show: (state) => {
      const [{ rows, columns }, another] = [{ ...own.size }, own.open(state)];
      if (another) {
        trouble.replaceChildren();
        computing.watch(state);
      }
      cell.show(state);
      const { left, top, right, bottom } = margins(field);
      const side = Math.min(LARGEST, (field.clientWidth - left - right) / own.size.columns);
      field.style.setProperty("--fit", `${top + bottom + own.size.rows * side}px`);
      const read = top + bottom + own.size.rows * NEAR;
      field.style.setProperty("--read", `${read < innerHeight ? read : 0}px`); // if the screen has room for all tokens
      const [x, y, scale] = (state.at ?? "").split("_").map(Number);
      if ([x, y, scale].every(Number.isFinite) && scale > 0) view.set({ x, y, scale });
      else if (rows !== own.size.rows || columns !== own.size.columns) view.fit();
      else view.set({});
    },
    close: () => {
      own.tiles?.close();
      computing.close();
      clearTimeout(noting);
      removeEventListener("themed", soon);
    },
  };
}

/**
 * Pointer and keys on the map.
 * @param {HTMLCanvasElement} canvas @param {Matrix} own @param {import("./viewport.js").Viewport} view
 * @param {import("./shell.js").Page} page @param {() => void} soon
 */
function listen(canvas, own, view, page, soon) {
  const point = (cell) => {
    own.hovered = cell;
    soon();
  };
  canvas.addEventListener("pointermove", (event) => point(event.buttons ? null : view.cell(event)));
  canvas.addEventListener("pointerleave", () => point(null));
  canvas.addEventListener("keydown", (event) => {
    const step = 2 ** levelAt(view.scale, own);
    const move = { ArrowUp: [-step, 0], ArrowDown: [step, 0], ArrowLeft: [0, -step], ArrowRight: [0, step] }[event.key];
    if (event.key === "Escape") {
      point(null);
      page.go({ query: null, key: null });
    } else if (event.key === "Enter" && own.hovered) page.go({ query: own.hovered.row, key: own.hovered.column });
    else if (move) {
      const from = own.focus();
      const [row, column] = from
        ? [from.row + move[0], from.column + move[1]]
        : [Math.floor(view.y), Math.floor(view.x)];
      const next = { row: clamp(row, 0, own.size.rows - 1), column: clamp(column, 0, own.size.columns - 1) };
      point(next);
      view.reveal(next.row, next.column);
      page.say(spoken(own, next, levelAt(view.scale, own)));
    } else if (!zoomed(event, view)) return;
    event.preventDefault();
  });
}

/** @param {Matrix} own @param {number} level @returns {(Node | string)[]} */
function said(own, level) {
  const place = own.focus();
  const { rows, columns } = own.size;
  const hint = touched() ? "touch a cell to see its equation" : "hover over a cell, or click it to see its equation";
  if (!place) return [`${count(rows)} × ${count(columns)}: ${hint}.`];
  const value = own.value(place, level);
  const entropy = own.track("entropy", level)?.[Math.floor(place.row / 2 ** level)];
  const received = own.track("received", level)?.[Math.floor(place.column / 2 ** level)];
  const aside = [`row ${count(place.row)}, column ${count(place.column)}`];
  if (entropy !== undefined) aside.push(`row entropy ${figure(entropy)}`);
  if (received !== undefined) aside.push(`key receives ${figure(received)}`);
  return [
    token(own.token("queries", place.row).text, "chip"),
    element("span.arrow", "→"),
    token(own.token("keys", place.column).text, "chip"),
    element("output", value === undefined ? "…" : figure(value)),
    element("span.aside", aside.join(" · ")),
  ];
}

/** @param {Matrix} own @param {number} level @param {Ramp} ramp @param {(state: import("./shell.js").State) => string} shown @returns {(Node | string)[]} */
function told(own, level, ramp, shown) {
  const { low, high, log } = own.scale(level);
  const [quantity, { how }] = [shown(own.state), own.state];
  const what = level === 0 ? quantity : `${how} ${quantity} of ${count(2 ** level)} × ${count(2 ** level)}`;
  const bar = element("span.ramp");
  bar.style.background = gradient(ramp);
  const ends = [log ? high / 10 ** DECADES : low, high].map((end) => element("span", figure(end)));
  return [what, ends[0], bar, ends[1], log ? "log" : ""];
}

/** @param {Matrix} own @param {Cell} cell @param {number} level @returns {string} */
function spoken(own, { row, column }, level) {
  const value = own.value({ row, column }, level);
  const names = [own.token("queries", row).text, own.token("keys", column).text];
  const said = value === undefined ? "not loaded yet" : figure(value);
  return `Query ${row}, ${names[0]}; key ${column}, ${names[1]}: ${said}`;
}
