import { describe, expect, it } from "vitest";
import { changedTask, connected, newTask, type VersionDocument, withTask } from "./document";
import { edgesOf, nodesOf, reused, type Shown, type Told } from "./graph";

const SHOWN: Shown = { active: null, selected: new Set(), marks: new Map(), covered: null };
const TOLD: Told = { task: () => "", aTask: "task", aWay: "connection" };

function flow(): VersionDocument {
  const tasks = ["welcome", "order"].map((id) => newTask(id));
  const both = tasks.reduce((document, task) => withTask(document, task), { draft: true } as VersionDocument);
  return connected(both, "welcome", "order");
}

describe("what is drawn again", () => {
  it("is the task that was changed, and no connection", () => {
    const before = flow();
    const after = changedTask(before, "order", { description: "Enter it." });
    const [welcome, order] = nodesOf(before, {}, SHOWN, TOLD);
    const nodes = reused(
      [welcome, order].flatMap((each) => each ?? []),
      nodesOf(after, {}, SHOWN, TOLD),
    );
    expect(nodes[0]).toBe(welcome);
    expect(nodes[1]).not.toBe(order);
    const edges = edgesOf(before, new Set(), TOLD);
    expect(reused(edges, edgesOf(after, new Set(), TOLD))).toBe(edges);
  });

  it("is what was moved", () => {
    const before = nodesOf(flow(), {}, SHOWN, TOLD);
    const after = nodesOf(flow(), { order: { x: 5, y: 0 } }, SHOWN, TOLD);
    expect(reused(before, after)[1]?.position).toEqual({ x: 5, y: 0 });
  });
});
