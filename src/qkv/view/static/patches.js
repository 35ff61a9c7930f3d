// Where one query looks in an image: its weights on a grid of patches.

import { nameOf, path, shownIn } from "./answers.js";
import { painted, signed } from "./colors.js";
import { element } from "./dom.js";
import { figure } from "./numbers.js";
import { SIZE } from "./tiles.js";

/** @typedef {import("./shell.js").State} State */

/**
 * The places of patches, which are named by row and column; nothing for other sequences.
 * @param {import("./answers.js").Sequence} tokens @returns {{ key: number, row: number, column: number }[]}
 */
export function patchesOf(tokens) {
  if (!/^\d+,\d+$/.test(tokens.at(tokens.length - 1)?.text ?? "")) return [];
  return Array.from({ length: tokens.length }, (_, key) => ({ key, place: /^(\d+),(\d+)$/.exec(tokens.at(key)?.text ?? "") }))
    .flatMap(({ key, place }) => (place ? [{ key, row: Number(place[1]) - 1, column: Number(place[2]) - 1 }] : []));
}

/**
 * @param {import("./shell.js").Page} page @param {State} state @returns {Promise<HTMLElement | string>} "" if the keys are no patches
 */
export async function grid(page, state) {
  const { columns: count, keys } = page.layers[Number(state.layer)];
  const places = patchesOf(page.sequences[keys]);
  if (places.length === 0) return "";
  const weights = new Float32Array(count);
  const [query, { layer, head, how }] = [Number(state.query), state];
  for (let column = 0; column * SIZE < count; column++) {
    const tile = await page.source.grid(path("tile", { layer, head, level: 0, row: Math.floor(query / SIZE), column, how, quantity: shownIn(state) }));
    weights.set(tile.values.subarray((query % SIZE) * tile.columns, (query % SIZE + 1) * tile.columns), column * SIZE);
  }
  const [rows, columns] = ["row", "column"].map((side) => 1 + Math.max(...places.map((place) => place[side])));
  const values = new Float32Array(rows * columns);
  for (const { key, row, column } of places) values[row * columns + column] = weights[key];
  const [low, high] = [Math.min(0, ...values), Math.max(1e-30, ...values)];
  const scale = state.quantity === "gradient" ? signed(low, high) : { low, high, log: state.log === "1" && low === 0 };
  const picture = painted({ rows, columns, values }, page.ramp(state), scale);
  picture.addEventListener("click", ({ offsetX, offsetY }) => {
    const at = { row: Math.floor((offsetY / picture.clientHeight) * rows), column: Math.floor((offsetX / picture.clientWidth) * columns) };
    const chosen = places.find(({ row, column }) => row === at.row && column === at.column);
    if (chosen) page.go({ key: chosen.key });
  });
  const patches = new Set(places.map(({ key }) => key));
  const others = Array.from(weights.keys()).filter((key) => !patches.has(key));
  const apart = others.map((key) => `${nameOf(page.sequences[keys], key)} ${figure(weights[key])}`);
  return element("figure.patches", picture, element("figcaption", [`${rows} × ${columns} patches`, ...apart].join(" · ")));
}
