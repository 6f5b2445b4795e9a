import { describe, expect, it } from "vitest";
import { cutTo, wayOf } from "./ways";

describe("a connection", () => {
  it("has its label in the gap before its target, however far that is", () => {
    const near = wayOf(232, 0, 382, 0);
    const far = wayOf(232, 0, 1146, 0);
    expect(near.label).toEqual({ x: 307, y: 0 });
    expect(far.label.x).toBeCloseTo(1071);
    expect([near.room, far.room]).toEqual([130, 130]);
  });

  it("that leads back passes below the tasks, with its label there", () => {
    const back = wayOf(614, 48, 0, 48);
    expect(back.label.x).toBe(307);
    expect(back.label.y).toBeGreaterThan(96);
    expect(back.room).toBeGreaterThan(600);
  });
});

describe("a label", () => {
  it("is cut to its room, and left out where there is none", () => {
    expect(cutTo(130, "[cart]")).toBe("[cart]");
    expect(cutTo(130, "[deliveryMethod, deliveryDate]")).toBe("[deliveryMethod, de…");
    expect(cutTo(20, "[cart]")).toBe("");
    expect(cutTo(2000, "x".repeat(50))).toHaveLength(42);
  });
});
