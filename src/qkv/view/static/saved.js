// A page that shows a recorded scene.

import { pageData, themed } from "./dom.js";
import { recorded } from "./recorded.js";
import { start } from "./shell.js";

themed();
const data = pageData();
recorded(data).then((source) => start(source, data.ramps));
