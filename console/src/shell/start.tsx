import { createRoot } from "react-dom/client";
import { restoreKey } from "../api/session";
import { App } from "./App";
import { startTheme } from "./theme";

/** Draws the console in an element of the page. */
export function start(root: HTMLElement): void {
  restoreKey();
  startTheme();
  createRoot(root).render(<App />);
}
