// The map: the whole matrix, as near or far as wanted.

import { latest, nameOf, path } from "./answers.js";
import { DECADES, gradient } from "./colors.js";
import { button } from "./controls.js";
import { element, inks, token } from "./dom.js";
import { equation } from "./equation.js";
import { drawAxis, drawMesh, drawTile, drawTrack, inSight, levelAt } from "./mapdraw.js";
import { clamp, count, figure } from "./numbers.js";
import { progress } from "./progress.js";
import { SIZE, tiles } from "./tiles.js";
import { LARGEST, viewport, zoomed } from "./viewport.js";

/** @typedef {import("./shell.js").State} State */
/** @typedef {import("./shell.js").Page} Page */

const KEYS = "Arrow keys walk, Enter keeps a cell, plus and minus zoom, 0 shows all, Escape lets go.";

/**
 * @param {HTMLElement} home
 * @param {Page} page
 * @returns {import("./shell.js").View}
 */
export function map(home, page) {
  const readout = element("div", { class: "readout" });
  const legend = element("div", { class: "legend" });
  const canvas = document.createElement("canvas");
  const field = element("div", { class: "field-of-view" }, canvas);
  Object.assign(canvas, { tabIndex: 0, role: "application", ariaLabel: `Map of the weights. ${KEYS}` });
  const cell = equation(page, () => page.go({ query: null, key: null }));
  const zooms = element(
    "div",
    { class: "zooms" },
    button("+", "Nearer", () => view.zoom(1.6)),
    button("−", "Farther", () => view.zoom(1 / 1.6)),
    button("⤢", "Show all", () => view.fit()),
  );
  const computing = progress(page, () => pyramid?.refresh(), () => draw());
  const trouble = element("p", { class: "trouble", role: "alert" });
  home.append(readout, element("div", { class: "split" }, element("div", { class: "mapcard" }, field, element("footer", {}, zooms, legend, computing.home)), cell.card), trouble);

  /** @type {State} */
  let state = {};
  /** @type {import("./tiles.js").Tiles | undefined} */
  let pyramid;
  let opened = "";
  let size = { rows: 1, columns: 1 };
  let levels = 1;
  /** @type {{ row: number, column: number } | null} */
  let hovered = null;
  let [waiting, noting] = [0, 0];
  /** @type {Map<string, import("./answers.js").Grid | null>} */
  const tracks = new Map();
  const run = latest();

  const layer = () => page.layers[Number(state.layer)];
  const kept = () => (state.query === undefined || state.key === undefined ? null : { row: Number(state.query), column: Number(state.key) });
  const plot = () => {
    const narrow = field.clientWidth < 560;
    const [left, top, right, bottom] = narrow ? [64, 64, 34, 34] : [112, 88, 64, 56];
    const [width, height] = [Math.max(40, field.clientWidth - left - right), Math.max(40, field.clientHeight - top - bottom)];
    const spare = Math.max(0, width - size.columns * view.scale); // what is narrower stands in the middle
    return { left: left + spare / 2, top, width, height };
  };
  const view = viewport(canvas, size, plot, {
    moved: () => {
      draw();
      clearTimeout(noting);
      noting = setTimeout(() => page.note({ at: [view.x, view.y, view.scale].map((part) => Number(part.toPrecision(7))).join("_") }), 250);
    },
    click: ({ row, column }) => page.go({ query: row, key: column }),
  });
  const scaleAt = (/** @type {number} */ level) => {
    const [low, high] = pyramid?.range(level) ?? [0, 0];
    return { low, high: high > low ? high : low + 1, log: state.log === "1" && low >= 0 };
  };
  const track = (/** @type {string} */ what, /** @type {number} */ level) => {
    const asked = path("track", { layer: state.layer, head: state.head, what, level });
    if (!tracks.has(asked)) {
      if (tracks.size > 32) tracks.clear();
      tracks.set(asked, null);
      page.source.grid(asked).then((grid) => (tracks.set(asked, grid), draw()), () => {});
    }
    return tracks.get(asked);
  };

  const fitted = () => {
    const { top, width } = plot();
    const bottom = field.clientWidth < 560 ? 34 : 56;
    field.style.setProperty("--fit", `${top + bottom + size.rows * Math.min(LARGEST, width / size.columns)}px`);
  };
  const draw = () => {
    if (waiting === 0) waiting = requestAnimationFrame(drawn);
  };
  const drawn = () => {
    waiting = 0;
    const pen = canvas.getContext("2d");
    if (!pen || !pyramid || !canvas.isConnected) return;
    const ratio = devicePixelRatio;
    const [width, height] = [field.clientWidth, field.clientHeight];
    if (canvas.width !== Math.round(width * ratio)) canvas.width = Math.round(width * ratio);
    if (canvas.height !== Math.round(height * ratio)) canvas.height = Math.round(height * ratio);
    const color = inks(field);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    const [box, level] = [plot(), levelAt(view.scale, levels)];
    const cells = { ...box, width: Math.min(box.width, (size.columns - view.x) * view.scale), height: Math.min(box.height, (size.rows - view.y) * view.scale) };
    const places = inSight(view, box, size, level);
    pyramid.want([...places, { level: levels - 1, row: 0, column: 0 }]);
    pen.save();
    pen.beginPath();
    pen.rect(box.left, box.top, cells.width, cells.height);
    pen.clip();
    pen.imageSmoothingEnabled = false;
    const image = (/** @type {import("./tiles.js").Place} */ place) => {
      const tile = pyramid?.get(place);
      return tile && pyramid?.paint(tile, page.ramp(state), scaleAt(place.level));
    };
    for (const place of places) drawTile(pen, view, box, place, image, levels);
    drawMesh(pen, view, cells, color.mesh);
    mark(pen, box, color);
    pen.restore();
    sides(pen, box, cells, level, color);
    told(level);
    Object.assign(canvas.dataset, { left: box.left, top: box.top, x: view.x, y: view.y, scale: view.scale, level, low: scaleAt(level).low, high: scaleAt(level).high });
    const states = places.map((place) => pyramid?.get(place)?.grid.state ?? "loading");
    const seen = states.includes("loading") ? "loading" : states.includes("sampled") ? "sampled" : "exact";
    canvas.dataset.state = seen;
    computing.seen(seen);
  };
  const mark = (/** @type {CanvasRenderingContext2D} */ pen, /** @type {import("./mapdraw.js").Box} */ box, /** @type {import("./mapdraw.js").Inks} */ color) => {
    const at = (/** @type {number} */ column, /** @type {number} */ row) => [box.left + (column - view.x) * view.scale, box.top + (row - view.y) * view.scale];
    for (const [place, fill] of /** @type {const} */ ([[hovered, false], [kept(), true]])) {
      if (!place) continue;
      const side = Math.max(5, view.scale);
      const [x, y] = at(place.column, place.row).map((pixel) => pixel - (side - view.scale) / 2);
      pen.lineWidth = fill ? 2 : 1;
      for (const [grow, ink] of /** @type {[number, string][]} */ ([[1, color.card], [0, color.ink]])) {
        pen.strokeStyle = ink;
        pen.strokeRect(x - grow, y - grow, side + 2 * grow, side + 2 * grow);
      }
    }
  };
  const sides = (/** @type {CanvasRenderingContext2D} */ pen, /** @type {import("./mapdraw.js").Box} */ box, /** @type {import("./mapdraw.js").Box} */ cells, /** @type {number} */ level, /** @type {import("./mapdraw.js").Inks} */ color) => {
    const focus = hovered ?? kept();
    const down = { start: view.y, scale: view.scale, from: box.top, to: box.top + cells.height };
    const across = { start: view.x, scale: view.scale, from: box.left, to: box.left + cells.width };
    const label = (/** @type {"queries" | "keys"} */ side, /** @type {number | undefined} */ on) => (/** @type {number} */ place) => {
      const tokens = page.sequences[layer()[side]];
      return { text: nameOf(tokens, place), on: place === on, marked: Boolean(tokens.at(place)?.note) };
    };
    pen.save();
    pen.beginPath();
    pen.rect(0, 0, field.clientWidth, field.clientHeight);
    pen.clip();
    drawAxis(pen, { ...down, across: box.left - 8, size: size.rows }, false, label("queries", focus?.row), color);
    drawAxis(pen, { ...across, across: box.top - 8, size: size.columns }, true, label("keys", focus?.column), color);
    pen.restore();
    const [entropy, received] = [track("entropy", level), track("received", level)];
    const narrow = field.clientWidth < 560;
    const room = narrow ? { right: 18, below: 14 } : { right: 48, below: 34 };
    const edge = { right: box.left + cells.width + 8, below: box.top + cells.height + 8 };
    pen.globalAlpha = 0.6;
    if (entropy) drawTrack(pen, entropy.values, { ...down, base: edge.right, room: room.right }, level, false, color.accent);
    if (received) drawTrack(pen, received.values, { ...across, base: edge.below, room: room.below }, level, true, color.accent);
    pen.globalAlpha = 1;
    pen.fillStyle = color.quiet;
    [pen.font, pen.textAlign, pen.textBaseline] = ["11px system-ui, sans-serif", "left", "alphabetic"];
    if (entropy) pen.fillText("entropy", Math.min(edge.right, field.clientWidth - 42), box.top - 8);
    if (received) pen.fillText("received", box.left, edge.below + room.below + 11);
    if (view.scale >= 11) pagesOfTokens(down, across);
  };
  const pagesOfTokens = (/** @type {{ start: number, from: number, to: number, scale: number }[]} */ ...axes) => {
    axes.forEach(({ start, from, to, scale }, side) => {
      const tokens = page.sequences[side ? layer().keys : layer().queries];
      const stop = Math.ceil(start + (to - from) / scale);
      if (!tokens.at(Math.floor(start)) || !tokens.at(Math.min(tokens.length, stop) - 1)) tokens.need(Math.floor(start), stop).then(draw, () => {});
    });
  };
  const told = (/** @type {number} */ level) => {
    readout.replaceChildren(...said(hovered ?? kept(), level));
    const { low, high, log } = scaleAt(level);
    const bar = element("span", { class: "ramp" });
    bar.style.background = gradient(page.ramp(state));
    const what = level === 0 ? state.quantity : `${state.how} ${state.quantity} of ${count(2 ** level)} × ${count(2 ** level)}`;
    legend.replaceChildren(what, element("span", {}, figure(log ? high / 10 ** DECADES : low)), bar, element("span", {}, figure(high)), log ? "log" : "");
  };
  const valueAt = (/** @type {{ row: number, column: number }} */ { row, column }, /** @type {number} */ level) => {
    const [down, right] = [Math.floor(row / 2 ** level), Math.floor(column / 2 ** level)];
    const tile = pyramid?.get({ level, row: Math.floor(down / SIZE), column: Math.floor(right / SIZE) });
    return tile?.grid.values[(down % SIZE) * tile.grid.columns + (right % SIZE)];
  };
  /** @returns {(Node | string)[]} */
  const said = (/** @type {{ row: number, column: number } | null} */ place, /** @type {number} */ level) => {
    if (!place) return [`${count(size.rows)} × ${count(size.columns)}: point at a cell, or click it for its equation.`];
    const { queries, keys } = layer();
    const value = valueAt(place, level);
    const [entropy, received] = [track("entropy", level)?.values[place.row >> level], track("received", level)?.values[place.column >> level]];
    const more = [entropy === undefined ? "" : `row entropy ${figure(entropy)}`, received === undefined ? "" : `key receives ${figure(received)}`];
    return [
      token(nameOf(page.sequences[queries], place.row), "chip"),
      element("span", { class: "arrow" }, "→"),
      token(nameOf(page.sequences[keys], place.column), "chip"),
      element("output", {}, value === undefined ? "…" : figure(value)),
      element("span", { class: "aside" }, [`row ${count(place.row)}, column ${count(place.column)}`, ...more].filter(Boolean).join(" · ")),
    ];
  };
  const speak = (/** @type {{ row: number, column: number }} */ place) => {
    const { queries, keys } = layer();
    const value = valueAt(place, levelAt(view.scale, levels));
    const tokens = [nameOf(page.sequences[queries], place.row), nameOf(page.sequences[keys], place.column)];
    page.say(`Query ${place.row}, ${tokens[0]}; key ${place.column}, ${tokens[1]}: ${value === undefined ? "not here yet" : figure(value)}`);
  };

  canvas.addEventListener("pointermove", (event) => {
    hovered = event.buttons ? null : view.cell(event);
    draw();
  });
  canvas.addEventListener("pointerleave", () => {
    hovered = null;
    draw();
  });
  canvas.addEventListener("keydown", (event) => {
    const step = 2 ** levelAt(view.scale, levels);
    const moves = { ArrowUp: [-step, 0], ArrowDown: [step, 0], ArrowLeft: [0, -step], ArrowRight: [0, step] };
    const move = moves[/** @type {keyof typeof moves} */ (event.key)];
    if (event.key === "Escape") {
      hovered = null;
      page.go({ query: null, key: null });
    } else if (event.key === "Enter" && hovered) page.go({ query: hovered.row, key: hovered.column });
    else if (move) {
      const from = hovered ?? kept();
      const next = from ? [from.row + move[0], from.column + move[1]] : [Math.floor(view.y), Math.floor(view.x)];
      hovered = { row: clamp(next[0], 0, size.rows - 1), column: clamp(next[1], 0, size.columns - 1) };
      view.reveal(hovered.row, hovered.column);
      speak(hovered);
    } else if (!zoomed(event, view)) return;
    event.preventDefault();
  });
  addEventListener("themed", draw);

  const open = () => {
    const { rows, columns } = layer();
    const resized = rows !== size.rows || columns !== size.columns;
    Object.assign(size, { rows, columns });
    levels = 1 + Math.max(0, Math.ceil(Math.log2(Math.max(rows, columns) / SIZE)));
    pyramid?.close();
    pyramid = tiles(page.source, { layer: state.layer, head: state.head }, { how: state.how, quantity: state.quantity }, {
      arrived: draw,
      failed: ({ message }) => trouble.replaceChildren(message),
    });
    trouble.replaceChildren();
    computing.watch(state);
    return resized;
  };
  return {
    show: (next) => {
      state = next;
      const asked = ["layer", "head", "how", "quantity"].map((name) => state[name]).join(" ");
      const resized = asked !== opened && open();
      opened = asked;
      cell.show(state);
      fitted();
      const [x, y, scale] = (state.at ?? "").split("_").map(Number);
      if (scale > 0) view.set({ x, y, scale });
      else if (resized || view.scale === 1) view.fit();
      draw();
    },
    close: () => {
      pyramid?.close();
      computing.close();
      clearTimeout(noting);
      removeEventListener("themed", draw);
    },
  };
}
