// The visible part of a matrix, and the gestures that change it: wheel, drag, pinch, keys.

import { clamp } from "./numbers.js";

export const LARGEST = 48; // pixels for a cell
const EVERY = 1.4; // times larger with one press of +

/**
 * @typedef {object} Viewport
 * @property {number} x the column at the left edge of the plot, with fraction
 * @property {number} y the row at its top edge
 * @property {number} scale pixels for a cell
 * @property {() => void} fit
 * @property {(factor: number, at?: { x: number, y: number }) => void} zoom around a point of the plot
 * @property {(row: number, column: number) => void} reveal scroll a cell into view with minimal movement
 * @property {(place: Partial<{ x: number, y: number, scale: number }>) => void} set
 * @property {(event: MouseEvent) => { row: number, column: number } | null} cell
 */

/**
 * @param {HTMLElement} surface receives the gestures @param {{ rows: number, columns: number }} size
 * @param {() => { left: number, top: number, width: number, height: number }} plot position of the matrix on the surface
 * @param {{ moved: () => void, click: (cell: { row: number, column: number }) => void }} listener
 * @returns {Viewport}
 */
export function viewport(surface, size, plot, listener) {
  const smallest = () => Math.min(plot().width / size.columns, plot().height / size.rows, LARGEST);
  const limit = () => {
    const { width, height } = plot();
    view.scale = clamp(view.scale, smallest(), Math.max(LARGEST, smallest()));
    view.x = clamp(view.x, 0, Math.max(0, size.columns - width / view.scale));
    view.y = clamp(view.y, 0, Math.max(0, size.rows - height / view.scale));
    listener.moved();
  };
  /** @type {Viewport} */
  const view = {
    x: 0,
    y: 0,
    scale: 1,
    fit: () => view.set({ x: 0, y: 0, scale: 0 }),
    set: (place) => {
      Object.assign(view, place);
      limit();
    },
    zoom: (factor, at = { x: plot().width / 2, y: plot().height / 2 }) => {
      const [from, x, y] = [plot(), view.x + at.x / view.scale, view.y + at.y / view.scale];
      view.scale = clamp(view.scale * factor, smallest(), LARGEST);
      const to = plot(); // what is under the pointer stays there, also where the plot moves to the middle
      view.x = x - (at.x + from.left - to.left) / view.scale;
      view.y = y - (at.y + from.top - to.top) / view.scale;
      limit();
    },
    reveal: (row, column) => {
      const { width, height } = plot();
      view.x = clamp(view.x, column + 1 - width / view.scale, column);
      view.y = clamp(view.y, row + 1 - height / view.scale, row);
      limit();
    },
    cell: (event) => {
      const { width, height } = plot();
      const { x, y } = placeIn(plot(), event);
      const [row, column] = [Math.floor(view.y + y / view.scale), Math.floor(view.x + x / view.scale)];
      const inside = x >= 0 && y >= 0 && x < width && y < height && row < size.rows && column < size.columns;
      return inside ? { row, column } : null;
    },
  };
  wheel(surface, view, plot);
  drag(surface, view, plot, listener.click);
  return view;
}

/** @param {KeyboardEvent} event @param {Viewport} view @returns {boolean} whether the key zooms */
export function zoomed({ key, ctrlKey, metaKey, altKey }, view) {
  if (ctrlKey || metaKey || altKey) return false;
  if (key === "+" || key === "=") view.zoom(EVERY);
  else if (key === "-") view.zoom(1 / EVERY);
  else if (key === "0") view.fit();
  else return false;
  return true;
}

/** @param {HTMLElement} surface @param {Viewport} view @param {() => { left: number, top: number }} plot */
function wheel(surface, view, plot) {
  surface.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      const pixels = event.deltaMode === 1 ? 16 : 1;
      if (event.shiftKey) view.set({ x: view.x + ((event.deltaX + event.deltaY) * pixels) / view.scale });
      else view.zoom(Math.exp((-event.deltaY * pixels * (event.ctrlKey ? 5 : 1)) / 500), placeIn(plot(), event));
    },
    { passive: false },
  );
}

/**
 * The place of an event on its surface. (`offsetX` is rounded, and a cell of a long map is less than a pixel.)
 * @param {{ left: number, top: number }} plot @param {MouseEvent} event
 */
function placeIn({ left, top }, { clientX, clientY, target }) {
  const surface = /** @type {Element} */ (target).getBoundingClientRect();
  return { x: clientX - surface.left - left, y: clientY - surface.top - top };
}

/**
 * One finger drags, two pinch; a press without movement is a click.
 * @param {HTMLElement} surface @param {Viewport} view @param {() => { left: number, top: number }} plot
 * @param {(cell: { row: number, column: number }) => void} click
 */
function drag(surface, view, plot, click) {
  /** @type {Map<number, { x: number, y: number }>} */
  const fingers = new Map();
  let travelled = 0;
  const spread = () => {
    const [one, other] = [...fingers.values()];
    return {
      middle: { x: (one.x + other.x) / 2, y: (one.y + other.y) / 2 },
      size: Math.hypot(one.x - other.x, one.y - other.y),
    };
  };
  surface.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    surface.setPointerCapture(event.pointerId);
    if (fingers.size === 0) travelled = 0;
    fingers.set(event.pointerId, placeIn(plot(), event));
  });
  surface.addEventListener("pointermove", (event) => {
    const before = fingers.get(event.pointerId);
    if (!before || fingers.size > 2) return;
    const now = placeIn(plot(), event);
    travelled += Math.hypot(now.x - before.x, now.y - before.y);
    const pinch = fingers.size === 2 ? spread() : null;
    fingers.set(event.pointerId, now);
    const then = pinch ? spread() : null;
    if (pinch && then) {
      view.zoom(then.size / Math.max(1, pinch.size), then.middle);
      view.set({
        x: view.x - (then.middle.x - pinch.middle.x) / view.scale,
        y: view.y - (then.middle.y - pinch.middle.y) / view.scale,
      });
    } else if (travelled > 4)
      view.set({ x: view.x - (now.x - before.x) / view.scale, y: view.y - (now.y - before.y) / view.scale });
  });
  const lift = (event) => {
    if (!fingers.delete(event.pointerId) || event.type !== "pointerup" || travelled > 4) return;
    const cell = view.cell(event);
    if (cell) click(cell);
  };
  surface.addEventListener("pointerup", lift);
  surface.addEventListener("pointercancel", lift);
}
