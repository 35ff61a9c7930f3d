// Formatting numbers.

/**
 * A weight.
 * @param {number} value @returns {string}
 */
export function figure(value) {
  if (value === 0) return "0";
  return Math.abs(value) < 0.0005 ? value.toExponential(1) : value.toFixed(3);
}

/**
 * Any number, in few characters, with a real minus sign; masked values have none.
 * @param {number | null | undefined} value @returns {string}
 */
export function short(value) {
  if (value === null || value === undefined) return "−∞";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : value < 0 ? "−∞" : "NaN";
  const size = Math.abs(value);
  const text =
    size === 0
      ? "0"
      : size < 0.005 || size >= 10000
        ? size.toExponential(1)
        : size >= 100
          ? size.toFixed(0)
          : size.toFixed(2);
  return value < 0 ? `−${text}` : text;
}

/**
 * A number with four digits, for equations.
 * @param {number} value @returns {string}
 */
export function digits(value) {
  return String(Number(value.toPrecision(4))).replace("-", "−");
}

/**
 * A count or a position.
 * @param {number} value @returns {string}
 */
export function count(value) {
  return value.toLocaleString("en");
}

/** @param {number} value @param {number} low @param {number} high @returns {number} */
export function clamp(value, low, high) {
  return Math.max(low, Math.min(high, value));
}

/**
 * @param {unknown} value what a URL says @param {number} size
 * @returns {number} the nearest place of so many, from 0; 0 for what is no number
 */
export function placeIn(value, size) {
  return clamp(Math.floor(Number(value)) || 0, 0, size - 1);
}

/**
 * Little-endian float32 from base64.
 * @param {string} text @returns {Float32Array}
 */
export function floats(text) {
  return new Float32Array(Uint8Array.from(atob(text), (character) => character.charCodeAt(0)).buffer);
}
