import { describe, expect, it } from "vitest";
import type { VersionDocument } from "./document";
import { difference, edit, isDirty, opened, typedOn } from "./editor";

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

  it("goes back through what was typed, with the texts that were no JSON among it", () => {
    let state = edit(opened(begun), { do: "change", document: next("drawn") });
    const texts = ['{ "draft": true }', '{ "draft": tru', "{ }"];
    for (const [number, text] of texts.entries()) state = edit(state, { do: "type", text, as: `${number}` });
    state = edit(state, { do: "undo" });
    expect([state.typed, state.brokenText, state.document.draft]).toEqual([texts[1], texts[1], true]);
    state = edit(state, { do: "undo" });
    expect([state.typed, state.brokenText]).toEqual([texts[0], null]);
    state = edit(state, { do: "undo" });
    expect([state.typed, state.document.globalPrompt]).toEqual([null, "drawn"]);
    expect(edit(state, { do: "undo" }).document).toBe(begun);
    expect(edit(edit(state, { do: "redo" }), { do: "redo" }).brokenText).toBe(texts[1]);
  });

  it("brings a text that was no JSON back by undo when something else was changed over it", () => {
    const broken = edit(opened(begun), { do: "type", text: "{" });
    const over = edit(broken, { do: "change", document: next("b") });
    expect([over.brokenText, edit(over, { do: "undo" }).brokenText]).toEqual([null, "{"]);
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

describe("typing", () => {
  it("is undone as far as it was typed in one go", () => {
    const first = typedOn({ since: 0, at: 0 }, "input.type", 10_000);
    const second = typedOn(first, "input.type", 10_300);
    expect(second).toEqual({ since: first.since, at: 10_300 });
    expect(typedOn(second, "delete.backward", 10_400).since).toBe(first.since);
    expect(typedOn(second, "input.type", 10_900).since).toBe(10_900);
    expect(typedOn(second, "input.paste", 10_400).since).toBe(10_400);
  });
});

describe("a difference of texts", () => {
  it("is the one place where they differ", () => {
    expect(difference("abcd", "abXd")).toEqual({ from: 2, to: 3, insert: "X" });
    expect(difference("aaa", "aaaa")).toEqual({ from: 3, to: 3, insert: "a" });
    expect(difference("aaaa", "aa")).toEqual({ from: 2, to: 4, insert: "" });
    expect(difference("", "x")).toEqual({ from: 0, to: 0, insert: "x" });
    expect(difference("same", "same")).toEqual({ from: 4, to: 4, insert: "" });
  });
});
