// Functions that the formulas of scores and normalizers share. Vectors are lists of numbers, matrices lists of rows.

/** @typedef {ArrayLike<number>} Vector */

/** @param {Vector} a @param {Vector} b @returns {number} a·b */
export function dot(a, b) {
  let sum = 0;
  for (let d = 0; d < a.length; d++) sum += a[d] * b[d];
  return sum;
}

/** @param {Vector} a @param {Vector} b @returns {number} ‖a−b‖², by subtraction: a difference of products would cancel */
export function apart(a, b) {
  let sum = 0;
  for (let d = 0; d < a.length; d++) sum += (a[d] - b[d]) ** 2;
  return sum;
}

/** @param {number} a @param {number} b @returns {number} a/b; 0 where b is 0 */
export function over(a, b) {
  return b === 0 ? 0 : a / b;
}

/** @param {number} x @param {number | null | undefined} cap @returns {number} c·tanh(x/c); x without a cap */
export function capped(x, cap) {
  return cap == null ? x : cap * Math.tanh(x / cap);
}

/** @param {number} x @param {string} activation "relu" or "leaky_relu" @returns {number} */
export function leaky(x, activation) {
  return x >= 0 ? x : activation === "relu" ? 0 : 0.2 * x;
}

/** @param {number} x @returns {number} */
export function relu(x) {
  return Math.max(0, x);
}

/** Products of the vectors that still exist: a query meets every key, and a key every query. */
const PRODUCTS = /** @type {WeakMap<object, WeakMap<object, Vector>>} */ (new WeakMap());

/** @param {Vector[] | null | undefined} matrix @param {Vector} x @returns {Vector} W x; x itself without a matrix */
export function times(matrix, x) {
  if (matrix == null) return x;
  const known = PRODUCTS.get(matrix) ?? new WeakMap();
  PRODUCTS.set(matrix, known);
  const product = known.get(x) ?? Float64Array.from(matrix, (row) => dot(row, x));
  known.set(x, product);
  return product;
}

/** @param {Vector} a @param {Vector} b @returns {Float64Array} */
export function plus(a, b) {
  return Float64Array.from(a, (x, d) => x + b[d]);
}

/** @param {Vector} v @param {Vector} a @param {Vector} b @param {(x: number) => number} f @returns {number} vᵀ f(a + b) */
export function bend(v, a, b, f) {
  let sum = 0;
  for (let d = 0; d < v.length; d++) sum += v[d] * f(a[d] + b[d]);
  return sum;
}

/** @param {Float64Array} s @returns {number} */
export function largest(s) {
  return s.reduce((most, x) => Math.max(most, x), Number.NEGATIVE_INFINITY);
}

/** @param {Float64Array} s @returns {number} */
export function total(s) {
  return s.reduce((sum, x) => sum + x, 0);
}

/** @param {Float64Array} s @param {number} by @returns {Float64Array} 0 where it would be divided by 0 */
export function divided(s, by) {
  return s.map((x) => over(x, by));
}

/** @param {Float64Array} s @returns {Float64Array} 1 at the first of the largest scores, 0 elsewhere */
export function hard(s) {
  const first = s.indexOf(largest(s));
  return s.map((_, j) => Number(j === first));
}

/** @param {Float64Array} s @param {number | null | undefined} sink @returns {Float64Array} exp(s)/(exp(sink) + Σexp(s)) */
export function softmax(s, sink) {
  const top = Math.max(largest(s), sink ?? Number.NEGATIVE_INFINITY);
  if (top === Number.NEGATIVE_INFINITY) return s.map(() => 0);
  const powers = s.map((x) => Math.exp(x - top));
  return divided(powers, total(powers) + (sink == null ? 0 : Math.exp(sink - top)));
}

/**
 * max(0, (α−1)s − τ)^(1/(α−1)), where τ makes the weights sum to one; it lies within 1 below the largest (α−1)s.
 * @param {Float64Array} s @param {number} alpha @returns {Float64Array}
 */
export function entmax(s, alpha) {
  const x = s.map((score) => (alpha - 1) * score);
  const above = (/** @type {number} */ tau) => x.map((value) => relu(value - tau) ** (1 / (alpha - 1)));
  let [low, high] = [largest(x) - 1, largest(x)];
  for (let turn = 0; turn < 60; turn++) {
    const middle = (low + high) / 2;
    if (total(above(middle)) < 1) high = middle;
    else low = middle;
  }
  return divided(above(low), total(above(low)));
}
