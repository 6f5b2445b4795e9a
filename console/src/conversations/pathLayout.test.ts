import { describe, expect, it } from "vitest";
import { BOX, boxesOf, tasksOf } from "./pathLayout";

const DOCUMENT = {
  tasks: [
    { _id: "a", name: "Reception", connectedTasks: ["b", "c"] },
    { _id: "b", name: "Visit", connectedTasks: ["a", "gone"] },
    { _id: "c", connectedTasks: [] },
    { _id: "d", name: "Island" },
    null,
  ],
};

describe("the graph of a path", () => {
  it("has a column for each step from the first task, what is not reached behind them", () => {
    const boxes = boxesOf(tasksOf(DOCUMENT), "a");
    const columns = boxes.map((box) => [box.task.name, box.x / (BOX.width + BOX.across)]);
    expect(columns).toEqual([
      ["Reception", 0],
      ["Visit", 1],
      ["c", 1],
      ["Island", 2],
    ]);
    expect(new Set(boxes.map((box) => `${box.x},${box.y}`)).size).toBe(4);
  });

  it("is empty for what is no document", () => {
    expect([tasksOf(undefined), tasksOf({ tasks: 3 }), boxesOf([], undefined)]).toEqual([[], [], []]);
  });
});
