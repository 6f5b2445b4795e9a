import react from "@vitejs/plugin-react";
import { defineConfig, type Plugin } from "vite";

/** CodeMirror's style sheets as constructed ones: a `<style>` element is refused by the page's policy. */
function constructedStyleSheets(): Plugin {
  const inDocument = "if (!root.head && root.adoptedStyleSheets && win.CSSStyleSheet) {";
  return {
    name: "constructed-style-sheets",
    transform(code, id) {
      if (!/style-mod\/src\/style-mod\.js/.test(id)) return null;
      if (!code.includes(inDocument)) throw new Error("style-mod has changed: see vite.config.ts");
      return code.replace(inDocument, "if (root.adoptedStyleSheets && win.CSSStyleSheet) {");
    },
  };
}

export default defineConfig({
  base: "/console/",
  plugins: [react(), constructedStyleSheets()],
  // Nothing inline: the policy has no data: for scripts and styles.
  build: { target: "es2023", assetsInlineLimit: 0, modulePreload: { polyfill: false }, sourcemap: false },
  worker: { format: "es" },
  server: { proxy: { "/v1": "http://127.0.0.1:8080", "/health": "http://127.0.0.1:8080" } },
});
