/** A template: its marks highlighted, its names completed. */
import { autocompletion, type CompletionContext, type CompletionResult } from "@codemirror/autocomplete";
import { EditorState } from "@codemirror/state";
import { Decoration, EditorView, MatchDecorator, ViewPlugin, type ViewUpdate } from "@codemirror/view";
import { type ReactNode, useEffect, useRef } from "react";
import { editing, OWN_HISTORY } from "./codemirror";
import type { Variable } from "./document";

const MARKS = new MatchDecorator({
  regexp: /\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}/g,
  decoration: Decoration.mark({ class: "cm-template" }),
});

const HIGHLIGHTING = ViewPlugin.fromClass(
  class {
    decorations;
    constructor(view: EditorView) {
      this.decorations = MARKS.createDeco(view);
    }
    update(update: ViewUpdate): void {
      this.decorations = MARKS.updateDeco(update, this.decorations);
    }
  },
  { decorations: (plugin) => plugin.decorations },
);

const NAMES = ["$tenant", "$contact", "$language", "$channel", "$now", "$today"];

/** Names that a template may use where the cursor is: within braces. */
export function templateNames(
  before: string,
  variables: readonly Variable[],
): { readonly from: number; readonly names: readonly string[] } | null {
  const open = before.lastIndexOf("{");
  if (
    open <= 0 ||
    !"{%".includes(before[open + (before[open - 1] === "{" ? 0 : 1)] ?? " ") ||
    before.indexOf("}", open) !== -1
  )
    return null;
  const word = /[$\w.]*$/.exec(before)?.[0] ?? "";
  return {
    from: before.length - word.length,
    names: [...variables.map((each) => `$vars.${each._id}`), ...NAMES],
  };
}

function completing(variables: {
  readonly current: readonly Variable[];
}): (context: CompletionContext) => CompletionResult | null {
  return (context) => {
    const found = templateNames(context.state.sliceDoc(0, context.pos), variables.current);
    return found === null
      ? null
      : { from: found.from, options: found.names.map((label) => ({ label, type: "variable" })) };
  };
}

interface TemplateEditorProps {
  readonly label: string;
  readonly value: string;
  readonly variables: readonly Variable[];
  readonly change: (value: string) => void;
  readonly readOnly: boolean;
}

export default function TemplateEditor({
  label,
  value,
  variables,
  change,
  readOnly,
}: TemplateEditorProps): ReactNode {
  const frame = useRef<HTMLDivElement>(null);
  const view = useRef<EditorView | null>(null);
  const known = useRef(variables);
  const changed = useRef(change);
  const first = useRef(value);
  known.current = variables;
  changed.current = change;
  useEffect(() => {
    if (frame.current === null) return;
    const editor = new EditorView({
      parent: frame.current,
      state: EditorState.create({
        doc: first.current,
        extensions: [
          editing(label, false),
          OWN_HISTORY,
          HIGHLIGHTING,
          autocompletion({ override: [completing(known)] }),
          EditorState.readOnly.of(readOnly),
          EditorView.updateListener.of((update) => {
            if (update.docChanged && !update.transactions.some((each) => each.isUserEvent("set")))
              changed.current(update.state.doc.toString());
          }),
        ],
      }),
    });
    view.current = editor;
    return () => editor.destroy();
  }, [label, readOnly]);
  useEffect(() => {
    const editor = view.current;
    if (editor === null || editor.state.doc.toString() === value) return;
    editor.dispatch({ changes: { from: 0, to: editor.state.doc.length, insert: value }, userEvent: "set" });
  }, [value]);
  return <div className="template-editor" ref={frame} />;
}
