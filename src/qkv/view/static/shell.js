// The page around the views: the current view, layer and head, and the URL that contains them.

import { alignments } from "./between.js";
import { MEAN, finestOf, sequence } from "./answers.js";
import { folded, offeredOr, segmented, select } from "./controls.js";
import { byId, element } from "./dom.js";
import { graph } from "./graph.js";
import { heads } from "./heads.js";
import { map } from "./map.js";
import { placeIn } from "./numbers.js";
import { steps } from "./steps.js";
import { whatif } from "./whatif.js";

/** @typedef {Record<string, string>} State the contents of the URL: view, layer, head, query, key, … */
/** @typedef {{ name: string, path: string, kind: string, queries: number, keys: number, equation: string }} Named sequences by number, a short name and the path in the model */
/** @typedef {Named & { heads: number, rows: number, columns: number, levels: number }} Layer */
/** @typedef {{ show: (state: State) => void, close?: () => void }} View */

/**
 * @typedef {object} Page the interface for views
 * @property {import("./answers.js").Source} source
 * @property {boolean} answers whether the model can run again with changed heads
 * @property {Layer[]} layers
 * @property {import("./answers.js").Sequence[]} sequences
 * @property {(state: State) => import("./colors.js").Color[]} ramp
 * @property {(state: State) => string} shown what maps show, in a word
 * @property {(changes: Record<string, string | number | null>) => void} go changes the URL and updates the page
 * @property {(changes: Record<string, string | number | null>) => void} note changes only the URL
 * @property {(text: string) => void} say announces to a screen reader
 */

/** @typedef {(home: HTMLElement, page: Page) => View} Open */
/**
 * What `means` shows can be a mean over heads.
 * @type {Record<string, { title: string, sentence: string, open: Open, controls: string[], means?: true }>}
 */
const VIEWS = {
  steps: {
    title: "Steps",
    sentence: "Follow one token through the computation: each line is one step with its actual numbers.",
    open: steps,
    controls: ["layer", "head"],
  },
  map: {
    title: "Map",
    sentence: "Each row is a token that attends, each column a token it attends to: brighter cells have larger weights.",
    open: map,
    controls: ["layer", "head", "quantity", "of", "how", "colors", "log"],
    means: true,
  },
  alignment: {
    title: "Alignment",
    sentence: "Each line links a token to one it attended to: the thicker the line, the larger the weight.",
    open: alignments,
    controls: ["layer", "head", "quantity", "of", "links", "special", "colors", "log"],
    means: true,
  },
  graph: {
    title: "Graph",
    sentence:
      "Where a token's attention comes from, layer by layer: the strongest paths, and how much weight they omit.",
    open: graph,
    controls: [],
  },
  whatif: {
    title: "What if",
    sentence: "Change the query or the mechanism, and compare the same token before and after.",
    open: whatif,
    controls: ["layer", "head"],
  },
  heads: {
    title: "Heads",
    sentence:
      "All heads at a glance, labeled by where their weights lie. Each map has a color scale of its own.",
    open: heads,
    controls: ["colors", "log"],
  },
};
/** The settings that have a few values, and the words for them. */
const CHOICES = {
  quantity: { weight: "weight", contribution: "contribution", rollout: "rollout", gradient: "gradient × attention" },
  how: { mean: "mean", max: "max" },
  colors: { cividis: "cividis", viridis: "viridis" },
  log: { 0: "linear", 1: "log" },
  links: { some: "from 5 %", more: "from 20 %", most: "from 50 %", top3: "top 3", top1: "top 1" },
  special: { show: "all tokens", hide: "without special" },
};
/** What maps show in place of weights. */
const EXPLAINED = {
  contribution: "Each weight times the length of what its token passes on: the value after the output projection.",
  rollout: "How much of each input token is in each token of this layer: the mean weights of all layers below, half residual stream each, multiplied (rollout).",
  gradient: "How much each weight speaks for the answer: the weight times the gradient of the log-probability of what the model chose. Orange speaks for it, violet against it.",
};
const USUAL = { view: "map", layer: "0", head: "0", quantity: "weight", how: "mean", colors: "cividis", log: "0", links: "some", special: "show" };

/**
 * Show a scene.
 * @param {import("./answers.js").Source} source @param {Record<string, import("./colors.js").Color[]>} ramps
 * @param {AbortSignal} [signal] ends it, before another scene takes its place
 */
export async function start(source, ramps, signal) {
  const main = element("main.scene");
  const scene = await source.json("api/scene").catch((error) => {
    main.append(element("p.trouble", error.message));
  });
  if (signal?.aborted) return;
  byId("page").replaceChildren(main);
  if (!scene) return;
  if (scene.layers.length === 0) return void main.append(element("p.trouble", "No attention was recorded."));
  document.title = `${scene.title} · Attention`;
  byId("summary").replaceChildren(scene.title, ...(scene.written ? [element("b", " → "), scene.written] : []));
  const usual = { ...USUAL, ...opening(source, scene) };
  /** @type {State} */
  let state = {};
  /** @type {View | undefined} */
  let view;
  let shown = "";
  const tabs = element("nav.tabs", { "aria-label": "Views" });
  const lead = element("p.lead");
  const controls = element("div.controls");
  const home = element("div.home");
  const options = folded("Options", controls);
  const notes = [diverged(scene), source.held?.missing ? element("p.missing", { role: "note" }, source.held.missing) : null];
  main.append(tabs, ...notes.filter((note) => note !== null), lead, options, home);

  /** @type {Page} */
  const page = {
    source,
    answers: scene.answers === true && !source.held,
    layers: scene.layers.map(({ short, name, ...layer }) => ({ ...layer, name: short, path: name })),
    sequences: scene.sequences.map((listed, number) => sequence(source, listed, number)),
    shown: ({ quantity }) => CHOICES.quantity[quantity],
    ramp: ({ colors, quantity, view: shown }) => quantity === "gradient" && VIEWS[shown].means ? ramps.PuOr_r : (Object.hasOwn(ramps, colors) ? ramps[colors] : ramps.cividis),
    go: (changes) => {
      page.note(changes);
      follow(state);
    },
    note: (changes) => {
      state = { ...state, ...texts(changes) };
      try {
        history.replaceState(null, "", address(state, usual));
      } catch {} // the frame of a notebook has no address that could change
    },
    say: (text) => {
      byId("live").textContent = text;
    },
  };
  const follow = (/** @type {State} */ said) => {
    const given = Object.fromEntries(Object.entries(said).filter(([, value]) => value !== undefined));
    state = checked({ ...usual, ...given }, scene.layers);
    const chosen = VIEWS[state.view];
    const several = scene.layers[Number(state.layer)].heads > 1;
    const mean = { ...state, head: chosen.means && several ? MEAN : "0" }; // a rollout is one for all heads
    const seen = (state.head === MEAN && !chosen.means) || (state.quantity === "rollout" && chosen.means) ? mean : state;
    keepFocus(controls, () => controls.replaceChildren(...chosen.controls.map((name) => CONTROLS[name](seen, page))));
    options.hidden = chosen.controls.length === 0;
    tabs.replaceChildren(...Object.entries(VIEWS).map(([name, { title }]) => tab(name, title, state, usual)));
    lead.textContent = (chosen.means && EXPLAINED[state.quantity]) || chosen.sentence;
    if (shown !== state.view) {
      view?.close?.();
      home.replaceChildren();
      home.className = `home view-${state.view}`;
      view = chosen.open(home, page);
      shown = state.view;
    }
    view?.show(seen);
  };
  const read = (/** @type {string} */ hash) => follow(Object.fromEntries(new URLSearchParams(hash.slice(1))));
  addEventListener("hashchange", ({ newURL }) => {
    const { hash } = new URL(newURL); // before this event, the view may have noted its own state in the address
    read(hash);
    if (location.hash !== hash) page.note({});
  }, { signal });
  main.addEventListener("click", (event) => {
    const link = /** @type {Element} */ (event.target).closest("a[href^='#']");
    if (!link || location.protocol !== "about:") return;
    event.preventDefault(); // in the frame of a notebook it leads out of the frame
    read(link.getAttribute("href") ?? "");
  });
  addEventListener("resize", () => follow(state), { signal });
  signal?.addEventListener("abort", () => view?.close?.());
  read(location.hash);
}

/**
 * The layer and the head that are shown first: those that the scene names or, of a saved page, some that it holds.
 * @param {import("./answers.js").Source} source
 * @param {{ layers: { heads: number }[], opening: { layer: number, head: number | null } }} scene
 * @returns {{ layer: string, head: string }}
 */
function opening(source, { layers, opening: { layer, head } }) {
  const first = { layer: String(layer), head: String(head ?? MEAN) };
  const held = [first.layer, ...layers.keys()].find((at) => finestOf(source, { ...USUAL, layer: String(at) }) !== null);
  return held === undefined || String(held) === first.layer ? first : { layer: String(held), head: layers[held].heads > 1 ? MEAN : "0" };
}

/**
 * Where the first number is that is not finite, with a link to it.
 * @param {{ not_finite?: { layer: number, head: number, place: number, side: string, text: string } | null }} scene
 * @returns {HTMLElement | null}
 */
function diverged({ not_finite: found }) {
  if (!found) return null;
  const where = { view: "map", layer: found.layer, head: found.head };
  const cell = found.side === "query" || found.side === "weights" ? { query: found.place, key: 0 } : { query: found.place, key: found.place };
  const link = new URLSearchParams(Object.entries({ ...where, ...cell }).map(([name, value]) => [name, String(value)]));
  return element("p.diverged", { role: "alert" }, `${found.text} `, element("a", { href: `#${link}` }, "Show it"));
}

/** @param {number | null} level @returns {string} what to say of a map beside its name */
function lacking(level) {
  return level === 0 ? "" : level === null ? " · not in this page" : " · zoomed out";
}

/** @param {Layer} layer @param {State} state @returns {string[]} the heads that a view can show, and their mean */
function offered({ heads }, { view }) {
  return [...Array.from({ length: heads }, (_, at) => String(at)), ...(heads > 1 && VIEWS[view].means ? [MEAN] : [])];
}

/** @type {Record<string, (state: State, page: Page) => HTMLElement>} */
const CONTROLS = {
  layer: ({ layer }, { layers, source, go }) => {
    const field = select(
      "Layer",
      Object.fromEntries(
        layers.map(({ name }, place) => {
          return [place, `${name}${lacking(finestOf(source, { ...USUAL, layer: String(place) }))}`];
        }),
      ),
      layer,
      (to) => go({ layer: to, head: null, query: null, key: null, at: null }),
    );
    field.title = layers[Number(layer)].path;
    field.querySelectorAll("option").forEach((option, at) => {
      option.title = layers[at].path;
    });
    return field;
  },
  head: (state, { layers, go }) =>
    select(
      "Head",
      Object.fromEntries(
        offered(layers[Number(state.layer)], state).map((at) => [at, at]),
      ),
      state.head,
      (to) => go({ head: to }),
    ),
  quantity: ({ quantity }, { go }) => select("Shown", CHOICES.quantity, quantity, (to) => go({ quantity: to, of: null })),
  of: (state, page) => {
    const field = select("Of", { all: "the whole answer" }, "all", (to) => page.go({ of: to === "all" ? null : to }));
    field.hidden = state.quantity !== "gradient";
    const fill = (/** @type {{ labels: string[] }} */ { labels }) => {
      const home = /** @type {HTMLSelectElement} */ (field.querySelector("select"));
      labels.forEach((label, at) => home.add(new Option(`${at}: ${label}`, String(at))));
      // An option that is selected before it is added is chosen, but Chromium goes on showing the other one.
      const chosen = [...home.options].find(({ value }) => value === state.of);
      if (chosen) chosen.selected = true;
    };
    if (!field.hidden) page.source.json("api/answer").then(fill, () => {});
    return field;
  },
  how: ({ how, layer }, { layers, go }) => {
    const field = segmented("Cells when zoomed out", CHOICES.how, how, (to) => go({ how: to }));
    field.hidden = layers[Number(layer)].levels === 1; // each cell is one weight
    return field;
  },
  links: ({ links }, { go }) => select("Links", CHOICES.links, links, (to) => go({ links: to })),
  special: ({ special }, { go }) =>
    segmented("Tokens", CHOICES.special, special, (to) => go({ special: to })),
  colors: ({ colors }, { go }) =>
    segmented("Colors", CHOICES.colors, colors, (to) => go({ colors: to })),
  log: ({ log }, { go }) => segmented("Color scale", CHOICES.log, log, (to) => go({ log: to })),
};

/** @param {string} name @param {string} title @param {State} state @param {State} usual @returns {HTMLElement} */
function tab(name, title, state, usual) {
  const link = element("a", { href: address({ ...state, view: name }, usual) }, title);
  if (name === state.view) link.setAttribute("aria-current", "page");
  return link;
}

/** @param {State} state @param {State} usual @returns {string} `#view=…`, without default values */
function address(state, usual) {
  const said = Object.entries(state).filter(
    ([name, value]) => value !== undefined && (name === "view" || value !== usual[name]),
  );
  return `#${new URLSearchParams(said)}`;
}

/**
 * Restrict the state to what the scene has.
 * @param {State} state @param {Layer[]} layers @returns {State}
 */
function checked(state, layers) {
  const within = (value, size) => String(placeIn(value, size));
  const layer = within(state.layer, layers.length);
  const { heads, rows, columns } = layers[Number(layer)];
  const places = Object.entries({ query: rows, key: columns }).filter(([name]) => name in state);
  const choices = Object.entries({ ...CHOICES, view: VIEWS });
  return {
    ...state,
    ...Object.fromEntries(choices.map(([name, offered]) => [name, offeredOr(offered, state[name], USUAL[name])])),
    layer,
    head: state.head === MEAN && heads > 1 ? MEAN : within(state.head, heads),
    ...Object.fromEntries(places.map(([name, size]) => [name, within(state[name], size)])),
    ...(/^\d{1,8}$/.test(state.of ?? "") ? {} : { of: undefined }),
  };
}

/** @param {Record<string, string | number | null>} changes null removes @returns {State} */
function texts(changes) {
  return /** @type {State} */ (
    Object.fromEntries(
      Object.entries(changes).map(([name, value]) => [name, value === null ? undefined : String(value)]),
    )
  );
}

/**
 * Rebuild controls and restore the keyboard focus.
 * @param {HTMLElement} home @param {() => void} build
 */
function keepFocus(home, build) {
  const all = () => /** @type {HTMLElement[]} */ ([...home.querySelectorAll("button, select, input")]);
  const place = all().findIndex((control) => control === document.activeElement);
  build();
  if (place >= 0) all()[place]?.focus();
}
