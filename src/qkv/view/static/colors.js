// The color scales from Python, and the position of values on them.

import { clamp } from "./numbers.js";

/** @typedef {[number, number, number]} Color red, green, blue, 0 to 255 */
/** @typedef {{ low: number, high: number, log: boolean }} Scale */

export const DECADES = 5; // that a logarithmic scale spans, down from its highest value
const DIVERGED = [214, 39, 74]; // what is no number
const STEPS = 1024;
const MIDDLE = 0.179; // the relative luminance (WCAG 2.1) from which black and white stand out alike

/**
 * The position of a value on a scale.
 * @param {Scale} scale @param {number} value @returns {number} 0 to 1
 */
export function placeOf({ low, high, log }, value) {
  if (log) return value > 0 ? clamp(1 + Math.log10(value / high) / DECADES, 0, 1) : 0;
  return clamp((value - low) / (high - low), 0, 1);
}

/** @param {number} low @param {number} high @returns {Scale} with 0 in the middle */
export function signed(low, high) {
  const most = Math.max(-low, high) || 1;
  return { low: -most, high: most, log: false };
}

/**
 * The color at a position of the scale.
 * @param {Color[]} ramp evenly spaced colors @param {number} place 0 to 1 @returns {Color}
 */
export function colorAt(ramp, place) {
  const scaled = place * (ramp.length - 1);
  const below = Math.min(Math.floor(scaled), ramp.length - 2);
  const part = scaled - below;
  const mix = (channel) => Math.round(ramp[below][channel] + (ramp[below + 1][channel] - ramp[below][channel]) * part);
  return [mix(0), mix(1), mix(2)];
}

/**
 * Paint values onto a new canvas, one pixel each; NaN in a color that no scale has.
 * @param {{ rows: number, columns: number, values: Float32Array }} grid @param {Color[]} ramp @param {Scale} scale
 * @param {HTMLCanvasElement} [canvas] @returns {HTMLCanvasElement}
 */
export function painted({ rows, columns, values }, ramp, scale, canvas = document.createElement("canvas")) {
  [canvas.width, canvas.height] = [columns, rows];
  if (values.length === 0) return canvas;
  const colors = table(ramp);
  const image = new ImageData(columns, rows);
  const pixels = new Uint32Array(image.data.buffer);
  values.forEach((value, at) => {
    pixels[at] = Number.isNaN(value) ? colors[STEPS] : colors[Math.round(placeOf(scale, value) * (STEPS - 1))];
  });
  canvas.getContext("2d")?.putImageData(image, 0, 0);
  return canvas;
}

/** @type {Map<Color[], Uint32Array>} */
const tables = new Map();

/** @param {Color[]} ramp @returns {Uint32Array} in the memory layout of pixels */
function table(ramp) {
  const known = tables.get(ramp);
  if (known) return known;
  const bytes = new Uint8ClampedArray(4 * (STEPS + 1));
  bytes.set([...DIVERGED, 255], 4 * STEPS);
  for (let step = 0; step < STEPS; step++) bytes.set([...colorAt(ramp, step / (STEPS - 1)), 255], 4 * step);
  const made = new Uint32Array(bytes.buffer);
  tables.set(ramp, made);
  return made;
}

/**
 * The whole scale as a CSS gradient.
 * @param {Color[]} ramp @returns {string}
 */
export function gradient(ramp) {
  return `linear-gradient(90deg, ${ramp.map((color) => `rgb(${color.join(" ")})`).join(", ")})`;
}

const CARDS = [
  [255, 255, 255],
  [25, 29, 39],
]; // what cells lie on, --card in page.css: light, dark

/**
 * Black or white, whichever is easier to read on a color: at least 4.58 to 1, for one of them always is.
 * @param {number[]} color red, green, blue, alpha @returns {string} for both themes
 */
export function inkOn([red, green, blue, alpha]) {
  const inks = CARDS.map((card) => {
    const seen = [red, green, blue].map((part, at) => (part * alpha + card[at] * (255 - alpha)) / 255 ** 2);
    const [r, g, b] = seen.map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b > MIDDLE ? "#000" : "#fff";
  });
  return `light-dark(${inks.join(", ")})`;
}
