/** The document that is being worked on: one state behind graph and text, with undo and redo. */
import type { VersionDocument } from "./document";

export interface EditorState {
  readonly document: VersionDocument;
  /** The text while it is no JSON object, null while it is. */
  readonly brokenText: string | null;
  readonly past: readonly VersionDocument[];
  readonly future: readonly VersionDocument[];
  /** What was saved last, or opened. */
  readonly saved: VersionDocument;
  /** Changes under the same name that follow each other are undone together. */
  readonly last: string | null;
}

export type EditorAction =
  | { readonly do: "open"; readonly document: VersionDocument }
  | { readonly do: "change"; readonly document: VersionDocument; readonly as?: string }
  | { readonly do: "type"; readonly text: string }
  | { readonly do: "saved"; readonly document: VersionDocument }
  | { readonly do: "undo" }
  | { readonly do: "redo" };

const REMEMBERED = 200;

export function opened(document: VersionDocument): EditorState {
  return { document, brokenText: null, past: [], future: [], saved: document, last: null };
}

function changed(state: EditorState, document: VersionDocument, as: string | null): EditorState {
  if (document === state.document) return state;
  const together = as !== null && as === state.last;
  const past = together ? state.past : [...state.past, state.document].slice(-REMEMBERED);
  return { ...state, document, brokenText: null, past, future: [], last: as };
}

/** The JSON object that a text is; null for any other text. */
export function parsed(text: string): VersionDocument | null {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null && !Array.isArray(value)
      ? (value as VersionDocument)
      : null;
  } catch {
    return null;
  }
}

export function edit(state: EditorState, action: EditorAction): EditorState {
  switch (action.do) {
    case "open":
      return opened(action.document);
    case "change":
      return changed(state, action.document, action.as ?? null);
    case "type": {
      const document = parsed(action.text);
      return document === null ? { ...state, brokenText: action.text } : changed(state, document, "type");
    }
    case "saved":
      return { ...state, saved: action.document, last: null };
    case "undo": {
      const before = state.past.at(-1);
      if (before === undefined) return state;
      const future = [state.document, ...state.future];
      return {
        ...state,
        document: before,
        brokenText: null,
        past: state.past.slice(0, -1),
        future,
        last: null,
      };
    }
    case "redo": {
      const [after, ...future] = state.future;
      if (after === undefined) return state;
      return {
        ...state,
        document: after,
        brokenText: null,
        past: [...state.past, state.document],
        future,
        last: null,
      };
    }
  }
}

export function isDirty(state: EditorState): boolean {
  return state.brokenText !== null || state.document !== state.saved;
}
