// The list of sentences, with a filter if it is long.

import { element } from "./dom.js";

const LONG = 8;

/**
 * Build the list; each entry is a link to `#` and the sentence's number.
 * @param {import("./sentence.js").Described[]} sentences @param {HTMLElement} home
 * @returns {(chosen: number) => void} marks the current entry
 */
export function list(sentences, home) {
  const items = sentences.map(({ from, to }, place) => {
    const link = element(
      "a",
      { href: `#${place + 1}` },
      element("bdi.to", { dir: "auto" }, to),
      element("bdi.from", { dir: "auto" }, from),
    );
    return element("li", link);
  });
  if (items.length > LONG) home.append(filter(sentences, items));
  home.append(element("ol", ...items));
  home.hidden = items.length < 2;
  home.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const links = [...home.querySelectorAll("li:not([hidden]) a")];
    const place = document.activeElement ? links.indexOf(document.activeElement) : -1;
    const next = step && links[place + step];
    if (next instanceof HTMLElement) {
      event.preventDefault();
      next.focus();
    }
  });
  return (chosen) => {
    items.forEach((item, place) => {
      if (place === chosen) item.firstElementChild?.setAttribute("aria-current", "true");
      else item.firstElementChild?.removeAttribute("aria-current");
    });
    items[chosen]?.scrollIntoView({ block: "nearest" });
  };
}

/** @param {import("./sentence.js").Described[]} sentences @param {HTMLElement[]} items @returns {HTMLElement} */
function filter(sentences, items) {
  const field = document.createElement("input");
  Object.assign(field, { type: "search", placeholder: "Find a sentence", ariaLabel: "Find a sentence" });
  field.addEventListener("input", () => {
    const wanted = field.value.toLocaleLowerCase();
    sentences.forEach(({ from, to }, place) => {
      items[place].hidden = !`${from}\n${to}`.toLocaleLowerCase().includes(wanted);
    });
  });
  return field;
}
