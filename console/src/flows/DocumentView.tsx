import { type Diagnostic, setDiagnostics } from "@codemirror/lint";
import { Compartment, EditorState } from "@codemirror/state";
import { EditorView } from "@codemirror/view";
import { findNodeAtLocation, type Node, parseTree } from "jsonc-parser";
import { type ReactNode, useEffect, useRef } from "react";
import { useText } from "../i18n";
import { jsonEditing } from "./codemirror";
import { segmentsOf, type VersionDocument } from "./document";
import { parsed } from "./editor";
import type { SchemaNode } from "./jsonSchema";
import type { Problem } from "./verdict";

export interface DocumentViewProps {
  readonly document: VersionDocument;
  readonly brokenText: string | null;
  readonly type: (text: string) => void;
  readonly problems: readonly Problem[];
  readonly schema: SchemaNode | undefined;
  /** The pointer to go to, with a number that rises with each wish. */
  readonly wanted: { readonly pointer: string; readonly nth: number } | null;
  readonly readOnly: boolean;
}

function nodeAt(tree: Node | undefined, pointer: string): Node | undefined {
  let path = segmentsOf(pointer).map((segment) => (/^\d+$/.test(segment) ? Number(segment) : segment));
  for (; tree !== undefined; path = path.slice(0, -1)) {
    const found = findNodeAtLocation(tree, path);
    if (found !== undefined || path.length === 0) return found;
  }
  return undefined;
}

export default function DocumentView(props: DocumentViewProps): ReactNode {
  const say = useText("flows");
  const { document, brokenText, problems, schema, wanted, readOnly } = props;
  const frame = useRef<HTMLDivElement>(null);
  const view = useRef<EditorView | null>(null);
  const type = useRef(props.type);
  type.current = props.type;
  const label = say("documentTab");
  const latest = useRef("");
  latest.current = brokenText ?? JSON.stringify(document, null, 2);

  useEffect(() => {
    if (frame.current === null) return;
    const changing = new Compartment();
    const editor = new EditorView({
      parent: frame.current,
      state: EditorState.create({
        doc: latest.current,
        extensions: [
          jsonEditing(label, schema),
          changing.of([]),
          EditorState.readOnly.of(readOnly),
          EditorView.updateListener.of((update) => {
            if (update.docChanged && !update.transactions.some((each) => each.isUserEvent("set"))) {
              type.current(update.state.doc.toString());
            }
          }),
        ],
      }),
    });
    view.current = editor;
    return () => {
      view.current = null;
      editor.destroy();
    };
  }, [label, schema, readOnly]);

  useEffect(() => {
    const editor = view.current;
    if (editor === null || brokenText !== null) return;
    const shown = editor.state.doc.toString();
    if (JSON.stringify(parsed(shown)) === JSON.stringify(document)) return;
    const text = JSON.stringify(document, null, 2);
    editor.dispatch({ changes: { from: 0, to: shown.length, insert: text }, userEvent: "set" });
  }, [document, brokenText]);

  useEffect(() => {
    const editor = view.current;
    if (editor === null) return;
    const tree = parseTree(editor.state.doc.toString());
    const found = problems.map((problem): Diagnostic => {
      const node = nodeAt(tree, problem.pointer);
      const from = node?.offset ?? 0;
      return {
        from,
        to: from + Math.min(node?.length ?? 1, 400),
        severity: problem.severity,
        message: problem.message,
        source: problem.code,
      };
    });
    editor.dispatch(setDiagnostics(editor.state, found));
  }, [problems]);

  useEffect(() => {
    const editor = view.current;
    if (editor === null || wanted === null) return;
    const node = nodeAt(parseTree(editor.state.doc.toString()), wanted.pointer);
    if (node === undefined) return;
    editor.dispatch({
      selection: { anchor: node.offset, head: node.offset + node.length },
      effects: EditorView.scrollIntoView(node.offset, { y: "center" }),
    });
    editor.focus();
  }, [wanted]);

  return <div className="document-view" ref={frame} />;
}
