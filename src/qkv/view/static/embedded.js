// Answers embedded in a saved page.

import { floats } from "./numbers.js";

/** @typedef {import("./answers.js").Source} Source */

/**
 * @param {Record<string, any>} answers by request path
 * @param {import("./answers.js").Held} held what the page holds @returns {Source}
 */
export function embedded(answers, held) {
  const known = async (path) => {
    if (Object.hasOwn(answers, path)) return answers[path];
    throw new Error("This saved page does not contain that. It needs the running viewer, `qkv view`.");
  };
  return {
    live: false,
    held,
    json: known,
    post: known,
    grid: async (path) => {
      const { shape, state, range, base64 } = await known(path);
      return { rows: shape[0], columns: shape[1], low: range[0], high: range[1], values: floats(base64), state };
    },
  };
}
