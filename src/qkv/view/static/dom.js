// Building the document. Text only becomes text nodes and attributes: no token can turn into markup.

import { revived } from "./numbers.js";

/** @typedef {Record<string, string | number>} Attributes */

/**
 * Create an HTML element.
 * @param {string} name its tag, followed by classes with dots
 * @param {...(Attributes | Node | string)} parts attributes, if any, come first; then the children
 * @returns {HTMLElement}
 */
export function element(name, ...parts) {
  const [tag, ...classes] = name.split(".");
  const node = document.createElement(tag);
  if (classes.length > 0) node.className = classes.join(" ");
  for (const part of parts) {
    if (typeof part === "string" || part instanceof Node) node.append(part);
    else for (const [key, value] of Object.entries(part)) node.setAttribute(key, String(value));
  }
  return node;
}

/**
 * Create an SVG element.
 * @param {string} tag @param {Record<string, string | number>} attributes @returns {SVGElement}
 */
export function shape(tag, attributes) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, String(value));
  return node;
}

/**
 * A token as displayed, isolated from the writing direction of its neighbors.
 * @param {string} text @param {string} [kind] @returns {HTMLElement}
 */
export function token(text, kind = "token") {
  return element(`bdi.${kind}`, { title: text }, text);
}

/**
 * A dotted name that a narrow line breaks after a dot or an underscore, and only there.
 * @param {string} name @returns {(Node | string)[]}
 */
export function breakable(name) {
  return name.split(/(?<=[._])/).flatMap((part, at) => (at === 0 ? [part] : [element("wbr"), part]));
}

/**
 * An equation of several parts, which a narrow line breaks after a semicolon.
 * @param {string} text @returns {HTMLElement}
 */
export function formula(text) {
  const parts = text.split(/(?<=; )/).map((part) => element("span", part));
  return element("p.formula", ...parts);
}

/**
 * The element of the page with this id.
 * @param {string} id @returns {HTMLElement}
 */
export function byId(id) {
  const node = document.getElementById(id);
  if (!node) throw new Error(`the page has no #${id}`);
  return node;
}

/** What the page was made with. @returns {any} */
export function pageData() {
  return revived(JSON.parse(byId("data").textContent ?? ""));
}

/** Make the page's button switch between light and dark. */
export function themed() {
  byId("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    root.dataset.theme = dark === "dark" ? "light" : "dark";
    dispatchEvent(new Event("themed"));
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => dispatchEvent(new Event("themed")));
}

const INKS = /** @type {const} */ (["ink", "quiet", "line", "accent", "card", "mesh"]);

/**
 * The page's current colors, light or dark, for a canvas.
 * @param {HTMLElement} home @returns {Record<typeof INKS[number], string>}
 */
export function inks(home) {
  const probe = element("i");
  home.append(probe);
  const found = INKS.map((name) => {
    probe.style.color = `var(--${name})`;
    return [name, getComputedStyle(probe).color];
  });
  probe.remove();
  return Object.fromEntries(found);
}
