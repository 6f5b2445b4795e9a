/** CodeMirror as the console sets it up: its looks, and what the JSON Schema adds to a JSON text. */
import {
  autocompletion,
  type Completion,
  type CompletionContext,
  type CompletionResult,
  completionKeymap,
} from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { json } from "@codemirror/lang-json";
import {
  bracketMatching,
  foldGutter,
  foldKeymap,
  HighlightStyle,
  indentOnInput,
  syntaxHighlighting,
} from "@codemirror/language";
import { lintGutter } from "@codemirror/lint";
import { highlightSelectionMatches, searchKeymap } from "@codemirror/search";
import type { Extension } from "@codemirror/state";
import { drawSelection, EditorView, hoverTooltip, keymap, lineNumbers } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { getLocation } from "jsonc-parser";
import { resolved, type SchemaNode, schemaAt, valuesOf } from "./jsonSchema";

const LOOKS = EditorView.theme({
  "&": { backgroundColor: "var(--surface)", color: "var(--text)", fontSize: "13px", height: "100%" },
  "&.cm-focused": { outline: "2px solid var(--accent)", outlineOffset: "-2px" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.55" },
  ".cm-content": { caretColor: "var(--text)" },
  ".cm-cursor": { borderLeftColor: "var(--text)" },
  ".cm-gutters": {
    backgroundColor: "var(--surface)",
    color: "var(--quiet)",
    borderRight: "1px solid var(--line)",
  },
  "&.cm-focused .cm-selectionBackground, .cm-selectionBackground": {
    background: "var(--accent-soft) !important",
  },
  ".cm-tooltip": {
    backgroundColor: "var(--surface)",
    border: "1px solid var(--line)",
    borderRadius: "8px",
    maxWidth: "460px",
  },
  ".cm-tooltip.cm-tooltip-hover": { padding: "6px 10px" },
  ".cm-tooltip-autocomplete ul li[aria-selected]": {
    background: "var(--accent)",
    color: "var(--accent-text)",
  },
  ".cm-panels": { backgroundColor: "var(--sunken)", color: "var(--text)" },
  ".cm-template": {
    color: "var(--accent-on-soft)",
    backgroundColor: "var(--accent-soft)",
    borderRadius: "3px",
  },
});

const COLOURS = HighlightStyle.define([
  { tag: tags.propertyName, color: "var(--accent)" },
  { tag: tags.string, color: "var(--good)" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--warn)" },
]);

/** Undo and redo of an editor's own text, where no page has them for more than that. */
export const OWN_HISTORY: Extension = [history(), keymap.of(historyKeymap)];

/** Undo and redo of the page that an editor is in. */
export function historyOf(undo: () => void, redo: () => void): Extension {
  const command = (act: () => void) => ({
    preventDefault: true,
    run: () => {
      act();
      return true;
    },
  });
  return [
    keymap.of([
      { key: "Mod-z", ...command(undo) },
      { key: "Mod-Shift-z", ...command(redo) },
      { key: "Mod-y", ...command(redo) },
    ]),
    EditorView.domEventHandlers({
      beforeinput: ({ inputType }) => {
        const act = { historyUndo: undo, historyRedo: redo }[inputType];
        act?.();
        return act !== undefined;
      },
    }),
  ];
}

/** What every editor of the console has beside its undo. Tab leaves it, unless `indents`. */
export function editing(label: string, indents: boolean): Extension {
  return [
    LOOKS,
    syntaxHighlighting(COLOURS),
    drawSelection(),
    bracketMatching(),
    highlightSelectionMatches(),
    EditorView.lineWrapping,
    EditorView.contentAttributes.of({ "aria-label": label, tabindex: "0", dir: "auto" }),
    keymap.of([...defaultKeymap, ...completionKeymap, ...searchKeymap, ...(indents ? [indentWithTab] : [])]),
  ];
}

export function jsonEditing(label: string): Extension {
  return [
    editing(label, false),
    lineNumbers(),
    foldGutter(),
    keymap.of(foldKeymap),
    indentOnInput(),
    json(),
    lintGutter(),
  ];
}

/** What is completed and explained in a JSON text, once its schema is there. */
export function helpedBy(schema: SchemaNode | undefined): Extension {
  return schema === undefined ? [] : [autocompletion({ override: [completing(schema)] }), hovering(schema)];
}

function completing(schema: SchemaNode): (context: CompletionContext) => CompletionResult | null {
  return (context) => {
    const text = context.state.doc.toString();
    const { path, isAtPropertyKey } = getLocation(text, context.pos);
    const word = context.matchBefore(/"?[\w-]*/);
    if (word === null || (word.from === word.to && !context.explicit)) return null;
    const options = isAtPropertyKey ? properties(schema, path) : values(schema, path);
    if (options.length === 0) return null;
    const quoted = text[context.pos] === '"' && word.text.startsWith('"');
    return { from: word.from, to: quoted ? context.pos + 1 : context.pos, options, filter: true };
  };
}

function properties(schema: SchemaNode, path: readonly (string | number)[]): Completion[] {
  const known = resolved(schema, schemaAt(schema, path.slice(0, -1)))?.properties ?? {};
  return Object.entries(known).map(([name, node]) => ({
    label: JSON.stringify(name),
    type: "property",
    info: resolved(schema, node)?.description ?? "",
  }));
}

function values(schema: SchemaNode, path: readonly (string | number)[]): Completion[] {
  const node = schemaAt(schema, path);
  return node === undefined
    ? []
    : valuesOf(node).map((value) => ({ label: JSON.stringify(value), type: "constant" }));
}

function hovering(schema: SchemaNode): Extension {
  return hoverTooltip((view, position) => {
    const { path } = getLocation(view.state.doc.toString(), position);
    const meaning = schemaAt(schema, path)?.description;
    if (meaning === undefined || path.length === 0) return null;
    return {
      pos: position,
      create: () => {
        const dom = document.createElement("div");
        dom.textContent = `${path.at(-1)}: ${meaning}`;
        return { dom };
      },
    };
  });
}
