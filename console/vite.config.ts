import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { brotliCompressSync, constants, gzipSync } from "node:zlib";
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

/** What `main.tsx` imports late, so that it can ask the service first, is fetched together with it. */
function startFetchedAtOnce(): Plugin {
  return {
    name: "start-fetched-at-once",
    apply: "build",
    transformIndexHtml(page, { bundle = {} }) {
      const start = Object.values(bundle).find((file) => file.type === "chunk" && file.name === "start");
      if (start?.type !== "chunk") throw new Error("src/shell/start.tsx is no chunk of its own");
      return [start.fileName, ...start.imports]
        .filter((file) => !page.includes(file))
        .map((file) => ({
          tag: "link",
          attrs: { rel: "modulepreload", crossorigin: true, href: `./${file}` },
          injectTo: "head",
        }));
    },
  };
}

/** Beside each text file the same, compressed. ELK has no Brotli: that takes 4 s, and no page waits for it. */
function compressedTwins(): Plugin {
  const params = { [constants.BROTLI_PARAM_QUALITY]: 10 };
  return {
    name: "compressed-twins",
    apply: "build",
    writeBundle({ dir = "" }, bundle) {
      for (const file of Object.values(bundle)) {
        if (!/\.(css|js|svg)$/.test(file.fileName)) continue;
        const content = file.type === "chunk" ? file.code : file.source;
        const path = join(dir, file.fileName);
        writeFileSync(`${path}.gz`, gzipSync(content, { level: 9 }));
        if (!file.fileName.includes("elk-worker"))
          writeFileSync(`${path}.br`, brotliCompressSync(content, { params }));
      }
    },
  };
}

/** `early` runs while all others are under way, so it needs none of them. What every page needs is one file: a browser
 * fetches six at a time. */
const FILES = [
  { name: "early", test: /src\/(main|api\/early)|vite\/preload-helper/, priority: 1 },
  {
    name: "shared",
    test: /node_modules\/(react|react-dom|scheduler|react-router|@tanstack\/(query-core|react-query)|openapi-fetch)\/|src\/(i18n\/(index|en\/)|api\/(client|session)|shell\/(kit|states|Session)\.)/,
  },
];

export default defineConfig(({ command }) => ({
  base: command === "build" ? "./" : "/console/", // the service writes the way from each address
  plugins: [react(), constructedStyleSheets(), startFetchedAtOnce(), compressedTwins()],
  // Nothing inline: the policy has no data: for scripts and styles.
  build: {
    target: "es2023",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    sourcemap: false,
    rolldownOptions: { checks: { pluginTimings: false }, output: { codeSplitting: { groups: FILES } } },
  },
  worker: { format: "es" },
  server: { proxy: { "/v1": "http://127.0.0.1:8080", "/health": "http://127.0.0.1:8080" } },
}));
