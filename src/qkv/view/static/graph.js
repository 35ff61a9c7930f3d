// The graph: where the attention of one token comes from, down through the layers.

import { latest, nameOf, path } from "./answers.js";
import { folded, hinted, offeredOr, ribbon, segmented, touched } from "./controls.js";
import { breakable, element, shape, token } from "./dom.js";
import { figure, finite, placeIn } from "./numbers.js";

/** @typedef {{ layer: number, token: number, mass: number }} Node_ */
/** @typedef {{ layer: number, from: number, to: number, weight: number }} Link */
/** @typedef {{ nodes: Node_[], links: Link[], discarded: number[] }} Graph */

const [ROW, THICKEST, HEADER] = [26, 10, 92];
const LINKS = { 2: "2 links", 4: "4 links", 8: "8 links" };
const TOKENS = { 6: "6 tokens", 12: "12 tokens", 24: "24 tokens" };

/** @param {HTMLElement} home @param {import("./shell.js").Page} page @returns {import("./shell.js").View} */
export function graph(home, page) {
  const picker = element("div");
  const choices = element("div.controls");
  const readout = element("div.readout");
  const stage = hinted(element("div.stage.graph-stage"));
  home.append(folded("Options", choices), picker, readout, stage);
  const run = latest(stage);
  let shown = "";
  return {
    show: (state) => {
      const offered = ways(page);
      const way = offeredOr(offered, state.way, Object.keys(offered).at(-1) ?? "");
      const chain = offered[way];
      const tokens = page.sequences[page.layers[chain[chain.length - 1]].queries];
      const query = placeIn(state.follow ?? tokens.length - 1, tokens.length);
      const [top, frontier] = [offeredOr(LINKS, state.top, "4"), offeredOr(TOKENS, state.frontier, "12")];
      const asked = path("graph", { layers: chain.join(","), query, top, frontier });
      if (`${asked} ${innerWidth}` === shown) return;
      shown = `${asked} ${innerWidth}`;
      const titles = Object.fromEntries(Object.keys(offered).map((name) => [name, name]));
      choices.replaceChildren(
        ...(Object.keys(offered).length > 1
          ? [segmented("Through which layers", titles, way, (to) => page.go({ way: to, follow: null }))]
          : []),
        segmented("Links per token", LINKS, top, (to) => page.go({ top: to })),
        segmented("Tokens per layer", TOKENS, frontier, (to) => page.go({ frontier: to })),
      );
      ribbon(picker, tokens, "follow", query, (place) => page.go({ follow: place }));
      const fill = async (answer) => {
        await Promise.all(
          answer.nodes.map((node) => sequenceOf(page, chain, node.layer).need(node.token, node.token + 1)),
        );
        stage.replaceChildren(
          drawn(answer, page, chain, home.clientWidth - 48, (text) => readout.replaceChildren(...text)),
        );
        stage.scrollLeft = stage.scrollWidth; // to the token that is followed
      };
      readout.replaceChildren(touched() ? "Touch a token or a line." : "Hover over a token or a line.");
      run(page.source.json(asked), fill);
    },
  };
}

/**
 * The chains of consecutive layers, bottom to top: self-attention layers of each sequence, and those below a
 * cross-attention layer.
 * @param {import("./shell.js").Page} page @returns {Record<string, number[]>}
 */
function ways({ layers, sequences }) {
  /** @type {Map<number, number[]>} */
  const within = new Map();
  layers.forEach(({ kind, queries }, at) => {
    if (kind === "self") within.set(queries, [...(within.get(queries) ?? []), at]);
  });
  /** @type {[string, number[]][]} */
  const chains = [...within].map(([number, chain]) => [sequences[number].name, chain]);
  layers.forEach(({ kind, queries, keys }, at) => {
    const crossing = `${sequences[queries].name} → ${sequences[keys].name}`;
    if (kind === "cross") chains.push([crossing, [...(within.get(keys) ?? []), at]]);
  });
  return Object.fromEntries(chains.length > 0 ? chains : [[layers[0].name, [0]]]); // whatever a name is, `__proto__` too
}

/**
 * @param {import("./shell.js").Page} page @param {number[]} chain @param {number} layer position, 0 for the inputs
 */
function sequenceOf({ layers, sequences }, chain, layer) {
  return sequences[layer === 0 ? layers[chain[0]].keys : layers[chain[layer - 1]].queries];
}

/**
 * @param {Graph} graph @param {import("./shell.js").Page} page @param {number[]} chain @param {number} room pixels
 * @param {(text: (Node | string)[]) => void} say @returns {HTMLElement}
 */
function drawn(graph, page, chain, room, say) {
  const name = ({ layer, token }) => nameOf(sequenceOf(page, chain, layer), token);
  const places = [...new Set(graph.nodes.map(({ token }) => token))].sort((a, b) => a - b);
  const lines = new Map(places.map((place, line) => [place, line]));
  const gap = Math.max(150, Math.min(420, (room - 130) / chain.length));
  const at = (layer, token) => ({ x: layer * gap, y: HEADER + (lines.get(token) ?? 0) * ROW });
  const [width, height] = [chain.length * gap + 120, HEADER + places.length * ROW + 4];
  const largest = Math.max(...graph.links.map(({ weight }) => Math.abs(finite(weight))), 1e-9);
  const home = element("div.graph", { role: "group", "aria-label": spoken(graph, chain.length, name) });
  home.style.setProperty("--gap", `${gap}px`);
  Object.assign(home.style, { width: `${width}px`, height: `${height}px` });
  const links = shape("svg", { width, height, class: "links", "aria-hidden": "true" });
  const paths = [...graph.links]
    .sort((a, b) => a.weight - b.weight)
    .map((link) => {
      const [from, to] = [at(link.layer, link.from), at(link.layer + 1, link.to)];
      const begin = from.x + 104;
      const middle = (begin + to.x) / 2;
      const line = shape("path", {
        d: `M${begin} ${from.y}C${middle} ${from.y} ${middle} ${to.y} ${to.x} ${to.y}`,
        "stroke-width": Math.max(1, (THICKEST * Math.abs(link.weight)) / largest),
      });
      line.style.setProperty("--strength", String(Math.abs(link.weight) / largest));
      line.addEventListener("pointerenter", () =>
        focus(
          (other) => other === link,
          [
            token(name({ layer: link.layer + 1, token: link.to }), "chip"),
            " draws ",
            element("output", figure(link.weight)),
            " from ",
            token(name({ layer: link.layer, token: link.from }), "chip"),
          ],
        ),
      );
      line.addEventListener("pointerleave", () => focus());
      links.append(line);
      return { line, link };
    });
  /** @type {(on?: (link: Link) => boolean, text?: (Node | string)[]) => void} */
  const focus = (on, text = []) => {
    links.classList.toggle("chosen", on !== undefined);
    for (const { line, link } of paths) line.classList.toggle("on", on?.(link) ?? false);
    if (on) say(text);
  };
  const nodes = graph.nodes.map((node) => {
    const { x, y } = at(node.layer, node.token);
    const mass = `${(100 * node.mass).toFixed(1)} %`;
    const tabindex = node.layer === chain.length ? 0 : -1; // the arrow keys lead from there to the others
    const item = element("span.node", { tabindex, role: "img", "aria-label": `${name(node)}: ${mass} of the mass followed` }, token(name(node)));
    Object.assign(item.style, { left: `${x}px`, top: `${y - ROW / 2 + 2}px` });
    item.style.setProperty("--share", String(Math.sqrt(Math.max(0, node.mass))));
    const touches = (link) =>
      (link.layer === node.layer && link.from === node.token) ||
      (link.layer + 1 === node.layer && link.to === node.token);
    const point = () => focus(touches, [token(name(node), "chip"), " holds ", element("output", mass), " of the mass followed"]);
    for (const kind of ["pointerenter", "focus"]) item.addEventListener(kind, point);
    for (const kind of ["pointerleave", "blur"]) item.addEventListener(kind, () => focus());
    return item;
  });
  home.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    const from = graph.nodes[nodes.findIndex((item) => item === document.activeElement)];
    if (!step || !from) return;
    event.preventDefault();
    const [across, down] = step;
    const far = ({ token }) => Math.abs(token - from.token);
    const next = graph.nodes
      .filter(({ layer, token }) => layer === from.layer + across && (across || Math.sign(token - from.token) === down))
      .sort((a, b) => far(a) - far(b))[0];
    if (next) nodes[graph.nodes.indexOf(next)].focus();
  });
  const heads = Array.from({ length: chain.length + 1 }, (_, layer) => {
    const title = layer === 0 ? "inputs" : page.layers[chain[layer - 1]].name;
    const left =
      layer < chain.length
        ? element("small", `${(100 * graph.discarded[layer]).toFixed(1)} % omitted`)
        : element("small", "followed");
    const bar = element("i");
    if (layer < chain.length) bar.style.setProperty("--share", String(graph.discarded[layer]));
    const head = element("div.column", element("b", { title }, ...breakable(title)), left, bar);
    head.style.left = `${layer * gap}px`;
    if (layer === chain.length) head.style.width = "118px";
    return head;
  });
  home.append(links, ...heads, ...nodes);
  return home;
}

/** @param {Graph} graph @param {number} top @param {(node: Node_) => string} name @returns {string} */
function spoken({ nodes, discarded }, top, name) {
  const columns = Array.from({ length: top + 1 }, (_, at) => top - at).map((layer) => {
    const inside = nodes
      .filter((node) => node.layer === layer)
      .sort((a, b) => b.mass - a.mass)
      .slice(0, 3);
    const left = layer < top ? `; ${(100 * discarded[layer]).toFixed(1)} percent omitted` : "";
    const said = inside.map((node) => `${name(node)} ${(100 * node.mass).toFixed(0)} percent`);
    return `position ${layer}: ${said.join(", ")}${left}`;
  });
  return `Sources of the token, ${columns.join(". ")}.`;
}
