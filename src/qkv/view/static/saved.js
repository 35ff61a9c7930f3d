// A page with embedded answers.

import { byId, themed } from "./dom.js";
import { embedded } from "./embedded.js";
import { unpacked } from "./packed.js";
import { start } from "./shell.js";

themed();
const data = JSON.parse(byId("data").textContent ?? "");
unpacked(data.packed).then((answers) => start(embedded(answers, data.held), data.ramps));
