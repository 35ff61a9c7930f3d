// Tiles of the level pyramid: requested when visible, nearest to the center first, in a bounded cache.

import { path } from "./answers.js";
import { painted } from "./colors.js";

export const SIZE = 256; // cells along a tile
const KEPT = 128; // tiles: at most 64 MiB of weights and pixels
const AT_ONCE = 6;
const PATIENCE = 2000; // milliseconds until a running viewer that refused is asked again

/** @typedef {{ level: number, row: number, column: number }} Place */
/** @typedef {import("./answers.js").Grid} Grid */
/** @typedef {{ grid: Grid, level: number, canvas: HTMLCanvasElement, painting: string, old: boolean }} Tile */
/** @typedef {import("./colors.js").Color[]} Ramp */

/**
 * @typedef {object} Tiles
 * @property {(place: Place) => Tile | undefined} get a cached tile
 * @property {(tile: Tile, ramp: Ramp, scale: import("./colors.js").Scale) => HTMLCanvasElement} paint
 * @property {(places: Place[]) => void} want request these tiles, and cancel others
 * @property {(level: number) => [number, number]} range smallest and largest value so far at a level
 * @property {() => void} refresh request sampled tiles again
 * @property {() => void} close
 */

/**
 * @param {import("./answers.js").Source} source @param {{ layer: string, head: string }} where
 * @param {{ how: string, quantity: string }} what
 * @param {{ arrived: () => void, failed: (error: Error) => void }} listener @returns {Tiles}
 */
export function tiles(source, where, what, listener) {
  /** @type {Map<string, Tile>} */
  const kept = new Map();
  /** @type {Map<string, AbortController>} */
  const running = new Map();
  /** @type {Set<string>} */
  const failed = new Set();
  /** @type {Place[]} */
  let wanted = [];
  const nameOf = ({ level, row, column }) => path("tile", { ...where, level, row, column, ...what });

  const load = async (place, name) => {
    const stop = new AbortController();
    running.set(name, stop);
    try {
      const grid = await source.grid(name, stop.signal);
      kept.delete(name);
      kept.set(name, { grid, level: place.level, canvas: document.createElement("canvas"), painting: "", old: false });
      for (const oldest of kept.keys()) {
        if (kept.size <= KEPT) break;
        kept.delete(oldest);
      }
      listener.arrived();
    } catch (error) {
      if (!(error instanceof Error) || error.name === "AbortError") return;
      failed.add(name);
      listener.failed(error);
      if (source.asks) setTimeout(() => failed.delete(name) && pump(), PATIENCE);
    } finally {
      running.delete(name);
      pump();
    }
  };
  const pump = () => {
    for (const place of wanted) {
      if (running.size >= AT_ONCE) return;
      const name = nameOf(place);
      const here = kept.get(name);
      if ((!here || here.old) && !running.has(name) && !failed.has(name)) load(place, name);
    }
  };
  return {
    get: (place) => {
      const name = nameOf(place);
      const tile = kept.get(name);
      if (tile) {
        kept.delete(name); // the last used is the last to go
        kept.set(name, tile);
      }
      return tile;
    },
    paint: (tile, ramp, scale) => {
      const painting = `${ramp[0]} ${scale.low} ${scale.high} ${scale.log}`;
      if (tile.painting !== painting) painted(tile.grid, ramp, scale, tile.canvas);
      tile.painting = painting;
      return tile.canvas;
    },
    want: (places) => {
      wanted = places;
      const names = new Set(places.map(nameOf));
      for (const [name, stop] of running) if (!names.has(name)) stop.abort();
      pump();
    },
    range: (level) => {
      const grids = [...kept.values()].filter((tile) => tile.level === level).map(({ grid }) => grid);
      return [Math.min(0, ...grids.map(({ low }) => low)), Math.max(0, ...grids.map(({ high }) => high))];
    },
    refresh: () => {
      for (const tile of kept.values()) tile.old ||= tile.grid.state !== "exact";
      failed.clear();
      pump();
    },
    close: () => {
      wanted = [];
      for (const stop of running.values()) stop.abort();
    },
  };
}
