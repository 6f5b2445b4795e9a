import { describe, expect, it } from "vitest";
import { type ConversationRow, filtersOf, queryOf, withChange } from "./filters";

function row(id: string, startedAt: string, task = "reception"): ConversationRow {
  return {
    conversationId: id,
    flowId: "order",
    versionId: "order-v1",
    tag: null,
    task,
    status: "active",
    channel: "phone",
    startedAt,
    updatedAt: startedAt,
    seq: 1,
    forkedFrom: null,
  };
}

const TWO = [row("b", "2026-01-15T10:00:00Z"), row("a", "2026-01-15T09:00:00Z")];

describe("filters", () => {
  it("are read from the address, what is none of a choice left out", () => {
    const address = new URLSearchParams(
      "q= call-1 &status=open&channel=chat&from=2026-01-15&to=yesterday&x=1",
    );
    expect(filtersOf(address)).toEqual({ q: "call-1", channel: "chat", from: "2026-01-15" });
  });

  it("leave out a day that no calendar has", () => {
    expect(filtersOf(new URLSearchParams("from=2026-13-45&to=1970-01-01"))).toEqual({ to: "1970-01-01" });
  });

  it("go to the API as whole days", () => {
    const { from, to } = queryOf({ from: "2026-01-15", to: "2026-01-15" });
    expect(Date.parse(to ?? "") - Date.parse(from ?? "")).toBe(24 * 60 * 60 * 1000 - 1);
  });
});

describe("a list that changes", () => {
  it("has a changed row in its place", () => {
    const changed = row("a", "2026-01-15T09:00:00Z", "checkout");
    expect(withChange(TWO, { conversations: [changed], gone: [] }, 50).map((each) => each.task)).toEqual([
      "reception",
      "checkout",
    ]);
  });

  it("has a new row by its start", () => {
    const fresh = row("c", "2026-01-15T11:00:00Z");
    const found = withChange(TWO, { conversations: [fresh], gone: [] }, 50);
    expect(found.map((each) => each.conversationId)).toEqual(["c", "b", "a"]);
  });

  it("forgets what is gone, but not what only left the newest rows of a longer list", () => {
    expect(
      withChange(TWO, { conversations: [], gone: ["a"] }, 50).map((each) => each.conversationId),
    ).toEqual(["b"]);
    expect(withChange(TWO, { conversations: [], gone: ["a"] }, 1)).toHaveLength(2);
  });
});
