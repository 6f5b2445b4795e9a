import { describe, expect, it } from "vitest";
import type { VersionDocument } from "./document";
import { edit, isDirty, opened } from "./editor";

const begun: VersionDocument = { draft: true, globalPrompt: "a" };
const next = (globalPrompt: string): VersionDocument => ({ draft: true, globalPrompt });

describe("the editor", () => {
  it("undoes and redoes", () => {
    let state = edit(opened(begun), { do: "change", document: next("b") });
    state = edit(state, { do: "undo" });
    expect(state.document).toBe(begun);
    expect(edit(state, { do: "undo" })).toBe(state);
    expect(edit(edit(state, { do: "redo" }), { do: "redo" }).document.globalPrompt).toBe("b");
  });

  it("undoes what was typed in one go", () => {
    let state = opened(begun);
    for (const text of ["b", "bc", "bcd"])
      state = edit(state, { do: "type", text: JSON.stringify(next(text)) });
    expect(edit(state, { do: "undo" }).document).toBe(begun);
  });

  it("keeps the document while its text is no JSON object", () => {
    for (const text of ["{", "[]", "null", ""]) {
      const state = edit(opened(begun), { do: "type", text });
      expect([state.document, state.brokenText, isDirty(state)]).toEqual([begun, text, true]);
    }
  });

  it("forgets what was undone when something else is changed", () => {
    const undone = edit(edit(opened(begun), { do: "change", document: next("b") }), { do: "undo" });
    expect(
      edit(edit(undone, { do: "change", document: next("c") }), { do: "redo" }).document.globalPrompt,
    ).toBe("c");
  });

  it("is clean after a save, and after going back to what was saved", () => {
    const state = edit(opened(begun), { do: "change", document: next("b") });
    expect(isDirty(state)).toBe(true);
    expect(isDirty(edit(state, { do: "undo" }))).toBe(false);
    expect(isDirty(edit(state, { do: "saved", document: state.document }))).toBe(false);
  });
});
