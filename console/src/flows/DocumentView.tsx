import { type Diagnostic, setDiagnostics } from "@codemirror/lint";
import { Compartment, EditorState, Transaction } from "@codemirror/state";
import { EditorView } from "@codemirror/view";
import { findNodeAtLocation, type Node, parseTree } from "jsonc-parser";
import { type ReactNode, useEffect, useLayoutEffect, useRef } from "react";
import { useText } from "../i18n";
import { helpedBy, historyOf, jsonEditing } from "./codemirror";
import { segmentsOf, type VersionDocument } from "./document";
import { difference, typedOn } from "./editor";
import type { SchemaNode } from "./jsonSchema";
import type { Problem } from "./verdict";

export interface DocumentViewProps {
  readonly document: VersionDocument;
  /** The text as it was typed, null where it is the document's own. */
  readonly typed: string | null;
  /** Edits under the same name are undone together. */
  readonly type: (text: string, as: string) => void;
  readonly undo: () => void;
  readonly redo: () => void;
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

const HELP = new Compartment();

export default function DocumentView(props: DocumentViewProps): ReactNode {
  const say = useText("flows");
  const { document, typed, undo, redo, problems, schema, wanted, readOnly } = props;
  const frame = useRef<HTMLDivElement>(null);
  const view = useRef<EditorView | null>(null);
  const type = useRef(props.type);
  type.current = props.type;
  const label = say("documentTab");
  const latest = useRef("");
  latest.current = typed ?? JSON.stringify(document, null, 2);
  const known = useRef(schema);
  known.current = schema;

  useEffect(() => {
    if (frame.current === null) return;
    let typing = { since: 0, at: 0 };
    const editor = new EditorView({
      parent: frame.current,
      state: EditorState.create({
        doc: latest.current,
        extensions: [
          jsonEditing(label),
          HELP.of(helpedBy(known.current)),
          historyOf(undo, redo),
          EditorState.readOnly.of(readOnly),
          EditorView.updateListener.of(({ docChanged, selectionSet, state, transactions }) => {
            if (transactions.some((each) => each.isUserEvent("set"))) return;
            if (!docChanged && selectionSet) typing = { ...typing, at: 0 };
            if (!docChanged) return;
            const kind = transactions.at(-1)?.annotation(Transaction.userEvent) ?? "";
            typing = typedOn(typing, kind, Date.now());
            type.current(state.doc.toString(), `type ${typing.since}`);
          }),
        ],
      }),
    });
    view.current = editor;
    return () => {
      view.current = null;
      editor.destroy();
    };
  }, [label, readOnly, undo, redo]);

  // Into the editor as it is: one that were made anew would lose its cursor to a schema that is late.
  useEffect(() => view.current?.dispatch({ effects: HELP.reconfigure(helpedBy(schema)) }), [schema]);

  // Before anything more can be typed: what is typed then would be taken back by what was shown before.
  useLayoutEffect(() => {
    const editor = view.current;
    if (editor === null) return;
    const shown = editor.state.doc.toString();
    const text = typed ?? JSON.stringify(document, null, 2);
    if (shown === text) return;
    const changes = difference(shown, text);
    const selection = { anchor: changes.from + changes.insert.length };
    editor.dispatch({ changes, selection, scrollIntoView: true, userEvent: "set" });
  }, [document, typed]);

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
