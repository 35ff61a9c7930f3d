// The page of a running viewer.

import { pageData, themed } from "./dom.js";
import { remote } from "./remote.js";
import { start } from "./shell.js";

themed();
start(remote(), pageData().ramps);
