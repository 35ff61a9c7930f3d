// The requests of the views, as paths; and token sequences, which are loaded in parts if long.

import { element } from "./dom.js";

/**
 * @typedef {object} Grid
 * @property {number} rows
 * @property {number} columns
 * @property {number} low
 * @property {number} high
 * @property {string} state "exact" or "sampled"
 * @property {Float32Array} values row by row
 */

/**
 * @typedef {object} Held what a saved page holds
 * @property {(number | null)[]} levels the finest level of each layer; null for none
 * @property {string} missing sentences about what it lacks, if anything
 */

/**
 * @typedef {object} Source where answers come from
 * @property {true} [asks] whether a running viewer answers, which may do so later what it refused
 * @property {Held} [held] what a saved page holds
 * @property {(path: string, signal?: AbortSignal) => Promise<any>} json
 * @property {(path: string, body?: object) => Promise<any>} post
 * @property {(path: string, signal?: AbortSignal) => Promise<Grid>} grid
 */

/** @typedef {import("./shell.js").State} State */
/** @typedef {{ text: string, shown: string, note: string, special?: boolean }} Token */
/**
 * @typedef {object} Sequence
 * @property {string} name
 * @property {number} length
 * @property {(place: number) => Token | undefined} at
 * @property {(start: number, stop: number) => Promise<void>} need
 */

const PIECE = 4096;
/** What stands for the number of a head where the map is the mean over all. */
export const MEAN = "mean";

/**
 * Build a path with its parameters, in the given order.
 * @param {string} name @param {Record<string, string | number>} parameters @returns {string}
 */
export function path(name, parameters) {
  const pairs = Object.entries(parameters).map(([key, value]) => `${key}=${encodeURIComponent(value)}`);
  return `api/${name}?${pairs.join("&")}`;
}

/**
 * @param {Source} source @param {{ name: string, length: number, tokens?: Token[] }} listed without tokens if it is long
 * @param {number} number its place among the sequences @returns {Sequence}
 */
export function sequence(source, { name, length, tokens }, number) {
  if (tokens) return { name, length, at: (place) => tokens[place], need: async () => {} };
  /** @type {Map<number, Token[]>} */
  const pieces = new Map();
  /** @type {Map<number, Promise<void>>} */
  const asked = new Map();
  const ask = async (piece) => {
    const [start, stop] = [piece * PIECE, Math.min(length, (piece + 1) * PIECE)];
    pieces.set(piece, await source.json(path("tokens", { sequence: number, start, stop })));
  };
  return {
    name,
    length,
    at: (place) => pieces.get(Math.floor(place / PIECE))?.[place % PIECE],
    need: async (start, stop) => {
      for (let piece = Math.floor(start / PIECE); piece * PIECE < Math.min(stop, length); piece++) {
        if (!asked.has(piece)) asked.set(piece, ask(piece));
        await asked.get(piece);
      }
    },
  };
}

/**
 * The finest level at which a source has a map: that of a saved page may be coarse.
 * @param {Source} source @param {State} state @returns {number | null} null if it lacks the map
 */
export function finestOf({ held }, { layer, how, quantity }) {
  const level = held ? held.levels[Number(layer)] : 0;
  return level && (how === "max" || quantity !== "weight") ? null : level;
}

/** @param {State} state @returns {string} what maps show, as requests name it */
export function shownIn({ quantity, of }) {
  return quantity === "gradient" && of !== undefined ? `gradient.${of}` : quantity;
}

/**
 * A token's label, or its position until it is loaded.
 * @param {Sequence} tokens @param {number} place @returns {string}
 */
export function nameOf(tokens, place) {
  return tokens.at(place)?.shown ?? `#${place}`;
}

/**
 * The token whose computation is shown: one in the middle, since a first token often sees only itself.
 * @param {import("./shell.js").Page} page @param {State} state @returns {string}
 */
export function queryOf({ layers }, { layer, query }) {
  return query ?? String(Math.floor(layers[Number(layer)].rows / 2));
}

/**
 * Use only the result of the last of several promises; if it fails, show the error in the container.
 * @param {HTMLElement} home
 * @returns {<T>(promise: Promise<T>, then: (value: T) => void) => Promise<void>}
 */
export function latest(home) {
  let turn = 0;
  return async (promise, then) => {
    const mine = ++turn;
    try {
      const value = await promise;
      if (mine === turn) then(value);
    } catch (error) {
      if (mine === turn && error instanceof Error)
        home.replaceChildren(element("p.trouble", { role: "alert" }, error.message));
    }
  };
}

/**
 * What the two sides of a layer's map are called: of self-attention by their part in it, else by their sequences.
 * @param {import("./shell.js").Page} page @param {import("./shell.js").Named} layer
 * @returns {[string, string]} what attends, and what it attends to
 */
export function sidesOf({ sequences }, { kind, queries, keys }) {
  return kind === "self" ? ["queries", "keys"] : [sequences[queries].name, sequences[keys].name];
}
