// A page with embedded answers.

import { byId } from "./dom.js";
import { embedded } from "./embedded.js";
import { start } from "./shell.js";

const data = JSON.parse(byId("data").textContent ?? "");
start(embedded(data.answers), data.ramps);
