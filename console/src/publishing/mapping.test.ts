import { describe, expect, it } from "vitest";
import { mappingOf } from "./mapping";

describe("a mapping of tasks", () => {
  it("has a pair a line", () => {
    expect(mappingOf("take order -> order\n\n pay->checkout ").pairs).toEqual({
      "take order": "order",
      pay: "checkout",
    });
  });

  it("names the lines that are none", () => {
    expect(mappingOf("a -> b\nc\n-> d\ne -> f -> g").wrong).toEqual([2, 3, 4]);
  });
});
