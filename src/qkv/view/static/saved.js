// A page that shows a recorded scene.

import { byId, themed } from "./dom.js";
import { recorded } from "./recorded.js";
import { start } from "./shell.js";

themed();
const data = JSON.parse(byId("data").textContent ?? "");
recorded(data).then((source) => start(source, data.ramps));
