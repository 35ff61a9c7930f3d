// The color scale, as Python gave it.

/** @typedef {[number, number, number]} Color red, green, blue, 0 to 255 */

/**
 * Give the color of a place on the scale.
 * @param {Color[]} ramp evenly spaced colors
 * @param {number} place 0 to 1
 * @returns {Color}
 */
export function colorAt(ramp, place) {
  const scaled = place * (ramp.length - 1);
  const below = Math.min(Math.floor(scaled), ramp.length - 2);
  const part = scaled - below;
  const mix = (/** @type {0 | 1 | 2} */ channel) =>
    Math.round(ramp[below][channel] + (ramp[below + 1][channel] - ramp[below][channel]) * part);
  return [mix(0), mix(1), mix(2)];
}

/**
 * The whole scale as a CSS gradient.
 * @param {Color[]} ramp
 * @returns {string}
 */
export function gradient(ramp) {
  return `linear-gradient(90deg, ${ramp.map((color) => `rgb(${color.join(" ")})`).join(", ")})`;
}
