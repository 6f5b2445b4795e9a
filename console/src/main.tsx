import { askEarly } from "./api/early";
import "./shell/base.css";
import "./shell/kit.css";
import "./flows/flows.css";

// The way to it begins at the first page's address, which changes while the console is used.
const icon = document.querySelector<HTMLLinkElement>('link[rel="icon"]');
icon?.setAttribute("href", icon.href);
void askEarly();
const root = document.getElementById("root");
if (root !== null) void import("./shell/start").then(({ start }) => start(root));
