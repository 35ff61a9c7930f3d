// Drawing a viewport: tiles, tracks next to them, and tokens, or positions where tokens do not fit.

import { clamp, count } from "./numbers.js";
import { SIZE } from "./tiles.js";

/** @typedef {{ left: number, top: number, width: number, height: number }} Box */
/** @typedef {import("./viewport.js").Viewport} Viewport */
/** @typedef {{ start: number, scale: number, from: number, to: number }} Axis from a cell on, from pixel to pixel */
/** @typedef {Record<"ink" | "quiet" | "line" | "accent" | "card" | "mesh", string>} Inks */

const LETTERS = 14; // of a token beside the map
const POSITION = /^\d+\.\d+s$/; // the time of a frame, which tells more than its number
const EDGE = 3; // pixels between a token and the edge of the canvas

/**
 * The level whose cells are at least one screen pixel, or the finest that there is.
 * @param {number} scale @param {{ levels: number, finest: number }} map @returns {number}
 */
export function levelAt(scale, { levels, finest }) {
  return clamp(Math.ceil(Math.log2(1 / (scale * devicePixelRatio)) - 1e-9), finest, levels - 1);
}

/**
 * The visible tiles, nearest to the center first.
 * @param {Viewport} view @param {Box} plot @param {{ rows: number, columns: number }} size @param {number} level
 * @returns {import("./tiles.js").Place[]}
 */
export function inSight(view, plot, size, level) {
  const side = SIZE * 2 ** level;
  const last = { row: Math.ceil(size.rows / side) - 1, column: Math.ceil(size.columns / side) - 1 };
  const end = { row: (view.y + plot.height / view.scale) / side, column: (view.x + plot.width / view.scale) / side };
  const places = [];
  for (let row = Math.floor(view.y / side); row <= Math.min(last.row, end.row); row++) {
    for (let column = Math.floor(view.x / side); column <= Math.min(last.column, end.column); column++) {
      places.push({ level, row, column });
    }
  }
  const middle = { row: (view.y / side + end.row) / 2 - 0.5, column: (view.x / side + end.column) / 2 - 0.5 };
  const far = ({ row, column }) => Math.hypot(row - middle.row, column - middle.column);
  return places.sort((a, b) => far(a) - far(b));
}

/**
 * Draw a tile, or the corresponding part of a coarser one.
 * @param {CanvasRenderingContext2D} pen @param {Viewport} view @param {Box} plot
 * @param {import("./tiles.js").Place} place
 * @param {(place: import("./tiles.js").Place) => HTMLCanvasElement | undefined} image @param {number} levels
 */
export function drawTile(pen, view, plot, place, image, levels) {
  for (let level = place.level; level < levels; level++) {
    const shift = 2 ** (level - place.level);
    const there = { level, row: Math.floor(place.row / shift), column: Math.floor(place.column / shift) };
    const picture = image(there);
    if (!picture) continue;
    const part = SIZE / shift; // cells of the coarser tile that lie here
    const [x, y] = [(place.column % shift) * part, (place.row % shift) * part];
    const [width, height] = [Math.min(part, picture.width - x), Math.min(part, picture.height - y)];
    const cell = view.scale * 2 ** level;
    const left = plot.left + ((there.column * SIZE + x) * 2 ** level - view.x) * view.scale;
    const top = plot.top + ((there.row * SIZE + y) * 2 ** level - view.y) * view.scale;
    if (width > 0 && height > 0) pen.drawImage(picture, x, y, width, height, left, top, width * cell, height * cell);
    return;
  }
}

/**
 * Lines between large cells.
 * @param {CanvasRenderingContext2D} pen @param {Viewport} view @param {Box} box of the cells themselves
 * @param {string} color
 */
export function drawMesh(pen, view, box, color) {
  pen.strokeStyle = color;
  pen.lineWidth = 1;
  pen.beginPath();
  for (let x = Math.ceil(view.x) - view.x; x * view.scale <= box.width; x++) {
    pen.moveTo(box.left + x * view.scale, box.top);
    pen.lineTo(box.left + x * view.scale, box.top + box.height);
  }
  for (let y = Math.ceil(view.y) - view.y; y * view.scale <= box.height; y++) {
    pen.moveTo(box.left, box.top + y * view.scale);
    pen.lineTo(box.left + box.width, box.top + y * view.scale);
  }
  pen.stroke();
}

/**
 * Tokens along one side, or positions if tokens would be unreadable.
 * @param {CanvasRenderingContext2D} pen
 * @param {Axis & { across: number, size: number, near: boolean }} axis text ends at the pixel `across`
 * @param {boolean} upright whether the axis runs across: its texts are turned unless all fit, single letters never
 * @param {(place: number) => { text: string, on: boolean, marked: boolean }} label @param {Inks} inks
 */
export function drawAxis(pen, { start, scale, from, to, across, size, near }, upright, label, inks) {
  const step = near ? 1 : rounded(64 / scale);
  pen.font = `${near ? clamp(scale * 0.62, 11, 14) : 11}px system-ui, "Segoe UI", "Noto Sans", sans-serif`;
  pen.textBaseline = "middle";
  const written = (place, room) => {
    const { text, marked } = label(place);
    return cut(pen, text, marked ? " •" : "", room);
  };
  const [begin, end] = [Math.max(0, Math.floor(start)), Math.min(size, Math.ceil(start + (to - from) / scale))];
  const seen = near ? Array.from({ length: Math.max(0, end - begin) }, (_, at) => written(begin + at, Infinity)) : [];
  const flat = seen.every((text) => pen.measureText(text).width <= 0.9 * scale);
  for (let place = Math.ceil(Math.max(0, start - 0.5) / step) * step; place < size; place += step) {
    const at = from + (place + 0.5 - start) * scale;
    if (at > to) return;
    if (at < from) continue;
    const { text, on } = near ? label(place) : { text: POSITION.test(label(place).text) ? label(place).text : count(place), on: false };
    pen.save();
    pen.fillStyle = on ? inks.ink : inks.quiet;
    if (upright) pen.translate(at, across);
    else pen.translate(across, at);
    const turned = upright && near && !flat && [...text].length > 1;
    if (turned) pen.rotate(-Math.PI / 2);
    pen.textAlign = upright ? (turned ? "left" : "center") : "right";
    if (upright && !turned) pen.textBaseline = "bottom";
    if (upright && !near && place === 0) pen.textAlign = "left"; // beside it stands what the axis is
    if (on) pen.font = pen.font.replace(/^(?!bold)/, "600 ");
    pen.fillText(near ? written(place, upright && !turned ? Infinity : across - EDGE) : text, 0, 0);
    pen.restore();
  }
}

/**
 * A track of numbers along one side, as an area chart.
 * @param {CanvasRenderingContext2D} pen @param {Float32Array} values each of 2^level cells
 * @param {Axis & { base: number, room: number }} axis @param {number} level @param {boolean} upright
 */
export function drawTrack(pen, values, { start, scale, from, to, base, room }, level, upright) {
  const largest = values.reduce((most, value) => (value > most ? value : most), 0);
  if (largest === 0) return;
  const cell = scale * 2 ** level;
  pen.beginPath();
  for (let place = Math.max(0, Math.floor(start / 2 ** level)); place < values.length; place++) {
    const begin = from + (place * 2 ** level - start) * scale;
    if (begin > to) break;
    const [left, right] = [Math.max(from, begin), Math.min(to, begin + cell)];
    const length = (Math.max(0, values[place]) / largest) * room;
    const gap = cell > 6 ? 1 : 0;
    if (upright) pen.rect(left, base, right - left - gap, length);
    else pen.rect(base, left, length, right - left - gap);
  }
  pen.fill();
}

/**
 * The smallest of 1, 2, 5, 10, 20, … that is not smaller.
 * @param {number} least @returns {number}
 */
function rounded(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, least)));
  return ([1, 2, 5, 10].find((step) => step * power >= least) ?? 10) * power;
}

/**
 * A token and its mark, cut to the space next to a map.
 * @param {CanvasRenderingContext2D} pen @param {string} text @param {string} mark @param {number} room in pixels
 * @returns {string}
 */
function cut(pen, text, mark, room) {
  const letters = [...text.slice(0, 64)];
  const fits = (written) => pen.measureText(written).width <= room;
  if (letters.length <= LETTERS && fits(text + mark)) return text + mark;
  const first = (number) => `${letters.slice(0, number).join("")}…${mark}`;
  let number = Math.min(letters.length, LETTERS) - 1;
  while (number > 1 && !fits(first(number))) number--;
  return first(number);
}
