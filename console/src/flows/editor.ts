/** The document that is being worked on: one state behind graph and text, with undo and redo. */
import type { VersionDocument } from "./document";

/** What undo goes back to. */
interface Moment {
  readonly document: VersionDocument;
  /** The text as it was typed, null where the graph made the document. */
  readonly typed: string | null;
  /** The text while it is no JSON object, null while it is. */
  readonly brokenText: string | null;
}

export interface EditorState extends Moment {
  readonly past: readonly Moment[];
  readonly future: readonly Moment[];
  /** What was saved last, or opened. */
  readonly saved: VersionDocument;
  /** Changes under the same name that follow each other are undone together. */
  readonly last: string | null;
}

export type EditorAction =
  | { readonly do: "change"; readonly document: VersionDocument; readonly as?: string }
  | { readonly do: "type"; readonly text: string; readonly as?: string }
  | { readonly do: "saved"; readonly document: VersionDocument }
  | { readonly do: "undo" }
  | { readonly do: "redo" };

const REMEMBERED = 200;

export function opened(document: VersionDocument): EditorState {
  return { document, typed: null, brokenText: null, past: [], future: [], saved: document, last: null };
}

function momentOf({ document, typed, brokenText }: EditorState): Moment {
  return { document, typed, brokenText };
}

function changed(state: EditorState, next: Moment, as: string | null): EditorState {
  const together = as !== null && as === state.last;
  const past = together ? state.past : [...state.past, momentOf(state)].slice(-REMEMBERED);
  return { ...state, ...next, past, future: [], last: as };
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
    case "change": {
      const { document } = action;
      if (document === state.document) return state;
      return changed(state, { document, typed: null, brokenText: null }, action.as ?? null);
    }
    case "type": {
      const typed = action.text;
      const document = parsed(typed);
      const next =
        document === null
          ? { document: state.document, typed, brokenText: typed }
          : { document, typed, brokenText: null };
      return changed(state, next, action.as ?? "type");
    }
    case "saved":
      return { ...state, saved: action.document, last: null };
    case "undo": {
      const before = state.past.at(-1);
      if (before === undefined) return state;
      const future = [momentOf(state), ...state.future];
      return { ...state, ...before, past: state.past.slice(0, -1), future, last: null };
    }
    case "redo": {
      const [after, ...future] = state.future;
      if (after === undefined) return state;
      return { ...state, ...after, past: [...state.past, momentOf(state)], future, last: null };
    }
  }
}

export function isDirty(state: EditorState): boolean {
  return state.brokenText !== null || state.document !== state.saved;
}

// --- typing -----------------------------------------------------------------------------------

/** When the edits of a text that are undone together began, and when the last one was, in ms. */
export interface Typing {
  readonly since: number;
  readonly at: number;
}

const PAUSE_MS = 500;

/** An edit goes with the one before it if it is typing or deleting, and comes right after it. */
export function typedOn(before: Typing, kind: string, at: number): Typing {
  const together = /^(input\.type|delete)\b/.test(kind) && at - before.at < PAUSE_MS;
  return { since: together ? before.since : at, at };
}

/** The one place where two texts differ: what lies there in the first, and what in the second. */
export function difference(before: string, after: string): { from: number; to: number; insert: string } {
  const most = Math.min(before.length, after.length);
  let from = 0;
  while (from < most && before[from] === after[from]) from += 1;
  let end = 0;
  while (end < most - from && before.at(-1 - end) === after.at(-1 - end)) end += 1;
  return { from, to: before.length - end, insert: after.slice(from, after.length - end) };
}
