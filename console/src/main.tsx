import { askEarly } from "./api/early";
import "./shell/base.css";
import "./shell/kit.css";
import "./flows/flows.css";

void askEarly();
const root = document.getElementById("root");
if (root !== null) void import("./shell/start").then(({ start }) => start(root));
