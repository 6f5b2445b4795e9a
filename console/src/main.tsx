import { createRoot } from "react-dom/client";
import { restoreKey } from "./api/session";
import { App } from "./shell/App";
import { startTheme } from "./shell/theme";
import "./shell/base.css";
import "./shell/kit.css";

restoreKey();
startTheme();
const root = document.getElementById("root");
if (root !== null) createRoot(root).render(<App />);
