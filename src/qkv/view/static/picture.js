// One picture of a matrix: its tiles, the selected cells, and the labels and tracks along its sides.

import { inks } from "./dom.js";
import { drawAxis, drawMesh, drawTile, drawTrack, inSight, levelAt } from "./mapdraw.js";

/** @typedef {import("./mapdraw.js").Box} Box */
/** @typedef {import("./mapdraw.js").Inks} Inks */
/** @typedef {import("./matrix.js").Matrix} Matrix */
/** @typedef {import("./viewport.js").Viewport} Viewport */
/** @typedef {{ left: number, top: number, right: number, bottom: number }} Margins */
/** @typedef {{ canvas: HTMLCanvasElement, field: HTMLElement }} Surface */
/** @typedef {Surface & { view: Viewport, own: Matrix, plot: Box, ramp: import("./colors.js").Color[] }} Given */

export const NEAR = 11; // pixels for a cell from which on tokens are written, and lines between cells drawn

/**
 * Margins around the plot: for tokens, and for the tracks.
 * @param {HTMLElement} field @returns {Margins}
 */
export function margins(field) {
  const narrow = field.clientWidth < 560;
  return narrow ? { left: 64, top: 76, right: 34, bottom: 34 } : { left: 112, top: 88, right: 64, bottom: 56 };
}

/**
 * Draw, and request the visible tiles.
 * @param {Given} given
 * @returns {{ level: number, seen: "exact" | "sampled" | "loading" }}
 */
export function draw({ canvas, field, view, own, plot, ramp }) {
  const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const size = {
    width: Math.round(field.clientWidth * devicePixelRatio),
    height: Math.round(field.clientHeight * devicePixelRatio),
  };
  if (canvas.width !== size.width || canvas.height !== size.height) Object.assign(canvas, size);
  pen.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
  pen.clearRect(0, 0, field.clientWidth, field.clientHeight);
  const [color, level] = [inks(field), levelAt(view.scale, own)];
  const cells = {
    ...plot,
    width: Math.min(plot.width, (own.size.columns - view.x) * view.scale),
    height: Math.min(plot.height, (own.size.rows - view.y) * view.scale),
  };
  const places = inSight(view, plot, own.size, level);
  own.tiles?.want([...places, { level: own.levels - 1, row: 0, column: 0 }]);
  const image = (place) => {
    const tile = own.tiles?.get(place);
    return tile && own.tiles?.paint(tile, ramp, own.scale(place.level));
  };
  clipped(pen, cells, () => {
    pen.imageSmoothingEnabled = false;
    for (const place of places) drawTile(pen, view, plot, place, image, own.levels);
    if (view.scale >= NEAR) drawMesh(pen, view, cells, color.mesh);
    if (own.hovered) mark(pen, view, plot, own.hovered, 1, color);
    const kept = own.kept();
    if (kept) mark(pen, view, plot, kept, 2, color);
  });
  clipped(pen, { left: 0, top: 0, width: field.clientWidth, height: field.clientHeight }, () =>
    axes(pen, view, own, cells, color),
  );
  tracks(pen, field, view, own, cells, level, color);
  const states = places.map((place) => own.tiles?.get(place)?.grid.state ?? "loading");
  return { level, seen: states.includes("loading") ? "loading" : states.includes("sampled") ? "sampled" : "exact" };
}

/** @param {CanvasRenderingContext2D} pen @param {Box} box @param {() => void} paint */
function clipped(pen, { left, top, width, height }, paint) {
  pen.save();
  pen.beginPath();
  pen.rect(left, top, width, height);
  pen.clip();
  paint();
  pen.restore();
}

/**
 * A frame around a cell, however small the cell is.
 * @param {CanvasRenderingContext2D} pen @param {Viewport} view @param {Box} plot
 * @param {import("./matrix.js").Cell} cell @param {number} width @param {Inks} inks
 */
function mark(pen, view, plot, { row, column }, width, { card, ink }) {
  const side = Math.max(5, view.scale);
  const grown = (side - view.scale) / 2;
  const [x, y] = [plot.left + (column - view.x) * view.scale - grown, plot.top + (row - view.y) * view.scale - grown];
  pen.lineWidth = width;
  pen.strokeStyle = card;
  pen.strokeRect(x - 1, y - 1, side + 2, side + 2);
  pen.strokeStyle = ink;
  pen.strokeRect(x, y, side, side);
}

/** @param {Viewport} view @param {Box} cells */
function spans(view, { left, top, width, height }) {
  const down = { start: view.y, scale: view.scale, from: top, to: top + height };
  return { down, across: { start: view.x, scale: view.scale, from: left, to: left + width } };
}

/**
 * @param {CanvasRenderingContext2D} pen @param {Viewport} view @param {Matrix} own @param {Box} cells
 * @param {Inks} color
 */
function axes(pen, view, own, cells, color) {
  const { down, across } = spans(view, cells);
  const focus = own.focus();
  if (view.scale >= NEAR) {
    own.need("queries", view.y, view.y + cells.height / view.scale);
    own.need("keys", view.x, view.x + cells.width / view.scale);
  }
  const query = (place) => ({ ...own.token("queries", place), on: place === focus?.row });
  const key = (place) => ({ ...own.token("keys", place), on: place === focus?.column });
  const near = view.scale >= NEAR;
  drawAxis(pen, { ...down, across: cells.left - 8, size: own.size.rows, near }, false, query, color);
  drawAxis(pen, { ...across, across: cells.top - 8, size: own.size.columns, near }, true, key, color);
  pen.fillStyle = color.quiet;
  [pen.font, pen.textAlign, pen.textBaseline] = ["11px system-ui, sans-serif", "right", "alphabetic"];
  const [down_, across_] = own.sides();
  pen.fillText(`${across_} →`, cells.left - 8, cells.top - 24);
  pen.fillText(`${down_} ↓`, cells.left - 8, cells.top - 9);
}

/**
 * @param {CanvasRenderingContext2D} pen @param {HTMLElement} field @param {Viewport} view @param {Matrix} own
 * @param {Box} cells @param {number} level @param {Inks} color
 */
function tracks(pen, field, view, own, cells, level, color) {
  const { right, bottom } = margins(field);
  const { down, across } = spans(view, cells);
  const edge = { right: cells.left + cells.width + 8, below: cells.top + cells.height + 8 };
  const [entropy, received] = [own.track("entropy", level), own.track("received", level)];
  pen.globalAlpha = 0.6;
  pen.fillStyle = color.accent;
  if (entropy?.length) drawTrack(pen, entropy, { ...down, base: edge.right, room: right - 16 }, level, false);
  if (received) drawTrack(pen, received, { ...across, base: edge.below, room: bottom - 22 }, level, true);
  pen.globalAlpha = 1;
  pen.fillStyle = color.quiet;
  [pen.font, pen.textAlign, pen.textBaseline] = ["11px system-ui, sans-serif", "left", "alphabetic"];
  if (entropy?.length) named(pen, "entropy", edge.right, cells.top - 8, field.clientWidth);
  if (received) pen.fillText("received", cells.left, edge.below + bottom - 11);
}

/**
 * The name of a vertical track; rotated if it would cover its neighbor.
 * @param {CanvasRenderingContext2D} pen @param {string} name @param {number} left @param {number} bottom
 * @param {number} end right edge of the field
 */
function named(pen, name, left, bottom, end) {
  const turned = left + pen.measureText(name).width > end;
  pen.save();
  pen.translate(turned ? left + 9 : left, bottom);
  if (turned) pen.rotate(-Math.PI / 2);
  pen.fillText(name, 0, 0);
  pen.restore();
}
