// The contents of a map: tiles and tracks of one head, their color scale, and the selected cells.

import { finestOf, nameOf, path, shownIn, sidesOf } from "./answers.js";
import { signed } from "./colors.js";
import { SIZE, tiles } from "./tiles.js";

/** @typedef {import("./shell.js").State} State */
/** @typedef {{ row: number, column: number }} Cell */
/** @typedef {"queries" | "keys"} Side */

const TRACKS = 32; // kept

/**
 * @typedef {object} Matrix
 * @property {State} state
 * @property {{ rows: number, columns: number }} size
 * @property {number} levels
 * @property {number} finest the finest level that there is
 * @property {import("./tiles.js").Tiles | undefined} tiles
 * @property {Cell | null} hovered
 * @property {() => Cell | null} kept the cell in the URL
 * @property {() => Cell | null} focus
 * @property {(state: State) => boolean} open whether this is a different matrix
 * @property {(level: number) => import("./colors.js").Scale} scale
 * @property {(what: "entropy" | "received", level: number) => Float32Array | undefined} track
 * @property {(place: Cell, level: number) => number | undefined} value of the pooled cell that contains a cell
 * @property {(side: Side, place: number) => { text: string, marked: boolean }} token
 * @property {(side: Side, start: number, stop: number) => void} need tokens
 * @property {() => [string, string]} sides what its rows and its columns are
 */

/**
 * @param {import("./shell.js").Page} page
 * @param {{ arrived: () => void, failed: (error: Error) => void }} listener
 * @returns {Matrix}
 */
export function matrix(page, listener) {
  /** @type {Map<string, Float32Array | undefined>} */
  const tracks = new Map();
  let opened = "";
  const layer = () => page.layers[Number(own.state.layer)];
  const tokens = (side) => page.sequences[layer()[side]];
  /** @type {Matrix} */
  const own = {
    state: {},
    size: { rows: 1, columns: 1 },
    levels: 1,
    finest: 0,
    tiles: undefined,
    hovered: null,
    kept: () => {
      const { query, key } = own.state;
      return query === undefined || key === undefined ? null : { row: Number(query), column: Number(key) };
    },
    focus: () => own.hovered ?? own.kept(),
    open: (state) => {
      own.state = state;
      const { layer: at, head, how } = state;
      const quantity = shownIn(state);
      const asked = [at, head, how, quantity].join(" ");
      if (asked === opened) return false;
      opened = asked;
      const { rows, columns, levels } = layer();
      Object.assign(own.size, { rows, columns });
      own.levels = levels;
      own.finest = Math.min(own.levels - 1, finestOf(page.source, state) ?? 0);
      own.tiles?.close();
      own.tiles = tiles(page.source, { layer: at, head }, { how, quantity }, listener);
      return true;
    },
    scale: (level) => {
      const [low, high] = own.tiles?.range(level) ?? [0, 0];
      if (own.state.quantity === "gradient") return signed(low, high);
      return { low, high: high > low ? high : low + 1, log: own.state.log === "1" && low >= 0 };
    },
    track: (what, level) => {
      if (!["weight", "contribution"].includes(own.state.quantity)) return undefined; // it is about weights
      const asked = path("track", { layer: own.state.layer, head: own.state.head, what, level });
      if (!tracks.has(asked)) {
        if (tracks.size >= TRACKS) tracks.clear();
        tracks.set(asked, undefined);
        const keep = ({ values }) => {
          tracks.set(asked, values);
          listener.arrived();
        };
        page.source.grid(asked).then(keep, listener.failed);
      }
      return tracks.get(asked);
    },
    value: ({ row, column }, level) => {
      const [down, right] = [Math.floor(row / 2 ** level), Math.floor(column / 2 ** level)];
      const tile = own.tiles?.get({ level, row: Math.floor(down / SIZE), column: Math.floor(right / SIZE) });
      return tile?.grid.values[(down % SIZE) * tile.grid.columns + (right % SIZE)];
    },
    token: (side, place) => ({ text: nameOf(tokens(side), place), marked: Boolean(tokens(side).at(place)?.note) }),
    sides: () => sidesOf(page, layer()),
    need: (side, start, stop) => {
      const [first, last] = [Math.max(0, Math.floor(start)), Math.min(tokens(side).length, Math.ceil(stop)) - 1];
      if (tokens(side).at(first) && tokens(side).at(last)) return;
      tokens(side)
        .need(first, last + 1)
        .then(listener.arrived, listener.failed);
    },
  };
  return own;
}
