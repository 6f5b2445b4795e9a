import { describe, expect, it } from "vitest";
import { costOf, durationOf, percentOf, totalOf } from "./figures";

describe("figures", () => {
  it("have the unit that suits them", () => {
    const shown = [0, 1.84, 420.4, 2_460, 180_000, 9_000_000].map((ms) => durationOf(ms, "en"));
    expect(shown).toEqual(["0 ms", "1.8 ms", "420 ms", "2.5 s", "3 min", "2.5 h"]);
  });

  it("are of the language", () => {
    expect(durationOf(2_460, "it")).toBe("2,5 s");
    expect(percentOf(0.153, "en")).toBe("15.3%");
  });

  it("tell small costs, and none where the price is not known", () => {
    expect([costOf(0.00032, "en"), costOf(12.5, "en"), costOf(0, "en"), costOf(null, "en")]).toEqual([
      "$0.00032",
      "$12.50",
      "$0.00",
      "–",
    ]);
  });
});

describe("counts by reason", () => {
  it("adds them up", () => {
    expect(totalOf({ busy: 2, draining: 1 })).toBe(3);
  });

  it("is nothing where nothing was counted", () => {
    expect(totalOf(undefined)).toBe(0);
  });
});
