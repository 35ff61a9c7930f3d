// Answers of the running viewer.

import { revived } from "./numbers.js";

/** @typedef {import("./answers.js").Source} Source */

/** @returns {Source} */
export function remote() {
  return {
    asks: true,
    json: async (path, signal) => revived(await (await reply(path, { signal })).json()),
    post: async (path, body) => {
      const headers = { "Content-Type": "application/json" };
      return revived(await (await reply(path, { method: "POST", headers, body: JSON.stringify(body ?? {}) })).json());
    },
    grid: async (path, signal) => {
      const answer = await reply(path, { signal });
      const [rows, columns] = numbers(answer, "X-Qkv-Shape");
      const [low, high] = numbers(answer, "X-Qkv-Range");
      const values = new Float32Array(await answer.arrayBuffer());
      return { rows, columns, low, high, values, state: answer.headers.get("X-Qkv-State") ?? "exact" };
    },
  };
}

/** @param {string} path @param {RequestInit} options @returns {Promise<Response>} */
async function reply(path, options) {
  const answer = await fetch(path, options).catch((error) => {
    throw error.name === "AbortError" ? error : new Error("The viewer does not respond: is `qkv view` still running?");
  });
  if (answer.ok) return answer;
  const told = await answer.json().catch(() => ({}));
  throw new Error(told.error ?? `The viewer responded with status ${answer.status}.`);
}

/** @param {Response} answer @param {string} header @returns {number[]} */
function numbers(answer, header) {
  return (answer.headers.get(header) ?? "").split(",").map(Number);
}
