// Reads a list of texts on the standard input and writes, for each, null or why Mermaid refuses it.
import { readFileSync } from "node:fs";
import { JSDOM } from "jsdom";

// Mermaid expects a browser even to parse.
const page = new JSDOM("<!doctype html><body></body>");
globalThis.window = page.window;
globalThis.document = page.window.document;
const { default: mermaid } = await import("mermaid");

const verdict = async (text) => {
  try {
    const { diagramType } = await mermaid.parse(text);
    return diagramType === "stateDiagram" ? null : `it is a ${diagramType}`;
  } catch (error) {
    return error.message;
  }
};

const verdicts = [];
for (const text of JSON.parse(readFileSync(0, "utf8"))) {
  verdicts.push(await verdict(text));
}
process.stdout.write(JSON.stringify(verdicts));
