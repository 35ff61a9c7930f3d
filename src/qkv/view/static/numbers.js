// Formatting numbers.

/**
 * A weight.
 * @param {number} value @returns {string}
 */
export function figure(value) {
  if (value === 0) return "0";
  return signed(Math.abs(value) < 0.0005 ? value.toExponential(1) : value.toFixed(3));
}

/**
 * Any number in at most six characters, which fit into a cell, with a real minus sign; masked values have none.
 * @param {number | null | undefined} value @returns {string}
 */
export function short(value) {
  if (value === null || value === undefined) return "−∞";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : value < 0 ? "−∞" : "NaN";
  const size = Math.abs(value);
  const text =
    size === 0
      ? "0"
      : size < 0.0005
        ? size.toExponential(0)
        : size < 0.005
          ? size.toFixed(3)
          : size >= 10000
            ? size.toExponential(1).replace("+", "")
            : size >= 100
              ? size.toFixed(0)
              : size.toFixed(2);
  return signed(value < 0 ? `-${text}` : text);
}

/**
 * A number with four digits, for equations, or as many as wanted.
 * @param {number} value @param {number} [most] @returns {string}
 */
export function digits(value, most = 4) {
  return signed(String(Number(value.toPrecision(most))));
}

/** @param {string} text a number as JavaScript writes it @returns {string} with real minus signs */
function signed(text) {
  return text.replaceAll("-", "−");
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
 * @param {number | null | undefined} value @returns {number} 0 for what is no finite number, to find the largest
 */
export function finite(value) {
  return Number.isFinite(value) ? Number(value) : 0;
}

/**
 * NaN and infinity, which JSON does not have, in their places.
 * @param {any} item parsed JSON, which is changed @returns {any}
 */
export function revived(item) {
  if (item === null || typeof item !== "object") return item;
  if (Object.hasOwn(item, "number") && Object.keys(item).length === 1) return Number(item.number);
  for (const name of Object.keys(item)) item[name] = revived(item[name]);
  return item;
}

/**
 * Little-endian float32 from base64.
 * @param {string} text @returns {Float32Array}
 */
export function floats(text) {
  return new Float32Array(Uint8Array.from(atob(text), (character) => character.charCodeAt(0)).buffer);
}
