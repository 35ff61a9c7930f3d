// The page of a running viewer.

import { byId } from "./dom.js";
import { remote } from "./remote.js";
import { start } from "./shell.js";

start(remote(), JSON.parse(byId("data").textContent ?? "").ramps);
