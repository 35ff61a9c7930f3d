// The page of a running viewer.

import { byId, themed } from "./dom.js";
import { remote } from "./remote.js";
import { start } from "./shell.js";

themed();
start(remote(), JSON.parse(byId("data").textContent ?? "").ramps);
