// A sentence and its weights.

import { placeOf } from "./colors.js";
import { floats } from "./numbers.js";

/**
 * @typedef {object} Described a sentence as the page's data holds it
 * @property {string[]} source labels of the S source tokens
 * @property {string[]} target labels of the T target tokens
 * @property {string} from the source in one line
 * @property {string} to the target in one line
 * @property {[string, string]} sides what source and target are called
 * @property {[number, number]} scale weights at the two ends of the color scale
 * @property {string} weights T rows of S float32, little-endian, base64
 */

/**
 * @typedef {object} Focus what is looked at: a cell, or with one side null a whole row or column
 * @property {number | null} target
 * @property {number | null} source
 */

/**
 * @typedef {object} Sentence
 * @property {string[]} source
 * @property {string[]} target
 * @property {[number, number]} scale
 * @property {Float32Array} weights (T, S), row by row
 * @property {boolean} [log] whether colors follow the logarithm
 * @property {Record<"source" | "target", string[]>} [notes] a word for special tokens
 * @property {"some" | "more" | "most" | "top1" | "top3"} [links] which links are drawn
 */

/**
 * Decode the weights.
 * @param {Described} described @returns {Sentence}
 */
export function decoded({ source, target, scale, weights }) {
  return { source, target, scale, weights: floats(weights) };
}

/**
 * The weight from target token t to source token s.
 * @param {Sentence} sentence @param {number} t @param {number} s @returns {number}
 */
export function weight(sentence, t, s) {
  return sentence.weights[t * sentence.source.length + s];
}

/**
 * The position of a weight on the color scale.
 * @param {Sentence} sentence @param {number} value @returns {number} 0 to 1
 */
export function fraction({ scale: [low, high], log = false }, value) {
  return placeOf({ low, high, log }, value);
}

/**
 * The cells of a row or column, strongest first.
 * @param {Sentence} sentence @param {Focus} focus with one side null @param {number} count number of cells
 * @returns {{ name: string, value: number }[]}
 */
export function strongest(sentence, focus, count) {
  const { target, source } = focus;
  const names = target === null ? sentence.target : sentence.source;
  return names
    .map((name, place) => ({ name, value: weight(sentence, target ?? place, source ?? place) }))
    .sort((a, b) => b.value - a.value)
    .slice(0, count);
}
