import { describe, expect, it } from "vitest";
import {
  humanMoves,
  type JournalRow,
  pathOf,
  shown,
  spansOf,
  stepOf,
  valuesOf,
  waitingText,
  wayOf,
} from "./timeline";

function row(seq: number, input: object, rest: Partial<JournalRow> = {}): JournalRow {
  return {
    seq,
    revision: seq,
    memoryRevision: 0,
    at: "2026-01-15T09:30:00Z",
    by: "bridge",
    input: input as JournalRow["input"],
    outcome: { result: true, task: "reception" },
    delta: {},
    rationale: null,
    ...rest,
  };
}

describe("a step of the timeline", () => {
  it("is a message with who said it", () => {
    const step = stepOf(row(2, { op: "handle-utterance", src: "user", body: "Good morning" }));
    expect([step.kind, step.speaker, step.subject]).toEqual(["said", "user", "Good morning"]);
  });

  it("is a refusal with its code and the task that was asked for", () => {
    const refused = { outcome: { result: false, task: "reception", code: "task_not_connected" } };
    const step = stepOf(
      row(3, { op: "change-task", task: "checkout" }, { ...refused, rationale: "Wants to pay" }),
    );
    expect(step).toMatchObject({
      kind: "refused",
      subject: "checkout",
      task: "reception",
      code: "task_not_connected",
      rationale: "Wants to pay",
    });
  });

  it("is the same as long as its row is: a live journal of thousands would be drawn anew with each entry", () => {
    const entry = row(5, { op: "handle-utterance", src: "user", body: "Yes" });
    expect(stepOf(entry)).toBe(stepOf(entry));
  });

  it("stays readable where a newer release wrote another operation", () => {
    expect(stepOf(row(4, { op: "something-new" })).kind).toBe("other");
  });

  it("has the values of tools and of the dialogue", () => {
    const delta = {
      tools: { price: { value: 12, updatedBy: "findPrice" } },
      mined: { phone: { value: { number: "+39333" } } },
    };
    expect(valuesOf(delta)).toEqual([
      { id: "price", value: 12, by: "findPrice" },
      { id: "phone", value: { number: "+39333" }, by: null },
    ]);
  });
});

describe("the path", () => {
  it("holds each task when it was entered, a refusal none", () => {
    const tasks = ["reception", "reception", "visit", "reception"];
    const steps = tasks.map((task, index) => stepOf(row(index + 1, { op: "memory" }, { outcome: { task } })));
    expect(pathOf(steps)).toEqual([
      { task: "reception", seq: 1 },
      { task: "visit", seq: 3 },
      { task: "reception", seq: 4 },
    ]);
  });
});

describe("the human part", () => {
  it("offers what the chart has a way for", () => {
    for (const each of ["ai", "approved", "edited", "rejected", "timeout"])
      expect(humanMoves(each)).toEqual(["taken_over"]);
    expect(humanMoves("waiting")).toEqual([]);
    expect(humanMoves("human")).toEqual(["released"]);
    expect(humanMoves(null)).toEqual([]);
  });

  it("knows the text that waits, until it is decided", () => {
    const approval = (seq: number, value: object | null): JournalRow =>
      row(seq, { op: "handle-human-task" }, { delta: { session: { approval: value } } });
    const waiting = approval(2, { id: 1, text: "We refund it.", status: "waiting" });
    expect(waitingText([waiting, row(3, { op: "memory" })])).toEqual({ id: 1, text: "We refund it." });
    expect(waitingText([waiting, approval(3, { id: 1, status: "approved" })])).toBeNull();
    expect(waitingText([waiting, approval(3, null)])).toBeNull();
  });
});

describe("the entries of a replay that differ", () => {
  it("are told by their spans, and the first of many", () => {
    expect(spansOf([])).toBe("");
    expect(spansOf([1, 2, 3, 7, 9, 10])).toBe("1–3, 7, 9–10");
    expect(spansOf([1, 3, 5, 7], 2)).toBe("1, 3, …");
    expect(spansOf(Array.from({ length: 2_000 }, (_, seq) => seq + 1))).toBe("1–2000");
  });
});

describe("a way through tasks", () => {
  it("is told whole, or where it ended", () => {
    expect(wayOf(["a", "b"], 2)).toBe("a → b");
    expect(wayOf(["a", "b", "c"], 2)).toBe("… → b → c");
  });
});

describe("a value in one line", () => {
  it("is cut where it is long, and a dash where there is none", () => {
    expect([shown(null), shown("x".repeat(9), 5), shown({ a: 1 })]).toEqual(["–", "xxxx…", '{"a":1}']);
  });

  it("is the number, of a phone", () => {
    expect(shown({ country: "IT", type: "mobile", number: "+393331234567" })).toBe("+393331234567");
  });
});
