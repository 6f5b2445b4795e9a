import { describe, expect, it } from "vitest";
import {
  changedTask,
  conditioned,
  connected,
  disconnected,
  everywhere,
  excluded,
  freeName,
  newTask,
  pasted,
  placed,
  positionsOf,
  reachable,
  sendable,
  taskAt,
  taskById,
  tasksOf,
  type VersionDocument,
  valueAt,
  withoutTasks,
  withTask,
  withValueAt,
} from "./document";

function flow(): VersionDocument {
  const empty: VersionDocument = { draft: true, variables: [] };
  const tasks = ["welcome", "order", "goodbye", "lost"].map((id) => newTask(id));
  const all = tasks.reduce((document, task) => withTask(document, task), empty);
  return connected(connected(all, "welcome", "order"), "order", "goodbye");
}

describe("tasks", () => {
  it("makes the first task of an empty flow the first", () => {
    expect(withTask({ draft: true }, newTask("a")).firstTask).toBe("a");
    expect(flow().firstTask).toBe("welcome");
  });

  it("gives tasks that a person takes part in a route to one", () => {
    expect(newTask("a", "HUM").routingParameters).toEqual({ timeout: 60 });
    expect(newTask("a", "AIO").routingParameters).toBeUndefined();
  });

  it("takes every mention of a task away with it", () => {
    const document = conditioned(flow(), "welcome", "order", { when: "true" });
    const next = withoutTasks({ ...document, globalTasks: ["order", "lost"] }, new Set(["order"]));
    expect(next.tasks?.map((task) => task._id)).toEqual(["welcome", "goodbye", "lost"]);
    expect(taskById(next, "welcome")).toMatchObject({ connectedTasks: [], connectionConditions: {} });
    expect(next.globalTasks).toEqual(["lost"]);
  });

  it("starts elsewhere when the first task goes", () => {
    expect(withoutTasks(flow(), new Set(["welcome"])).firstTask).toBe("order");
    expect(withoutTasks(flow(), new Set(["welcome", "order", "goodbye", "lost"])).firstTask).toBe("");
  });

  it("leaves nothing behind of ways to a task that is no longer a global one", () => {
    let document: VersionDocument = { ...flow(), globalTasks: ["goodbye", "lost"] };
    document = excluded(excluded(document, "welcome", "goodbye"), "welcome", "lost");
    document = conditioned(document, "lost", "goodbye", { when: "true" });
    document = conditioned(document, "order", "goodbye", { when: "true" });
    const next = everywhere(document, "goodbye", false);
    expect(next.globalTasks).toEqual(["lost"]);
    expect(taskById(next, "welcome")).toMatchObject({ excludedGlobalTasks: ["lost"] });
    expect(taskById(next, "lost")?.connectionConditions).toEqual({});
    expect(taskById(next, "order")?.connectionConditions).toEqual({ goodbye: { when: "true" } });
    expect(everywhere(next, "goodbye", true).globalTasks).toEqual(["lost", "goodbye"]);
  });

  it("can do without the way to a global task, and copies the condition of one", () => {
    const global = { ...flow(), globalTasks: ["goodbye"] };
    const document = conditioned(global, "welcome", "goodbye", { when: "true" });
    const copies = tasksOf(document).slice(0, 1);
    expect(taskById(pasted(document, copies, {}).document, "welcome-2")).toMatchObject({
      connectionConditions: { goodbye: { when: "true" } },
    });
    expect(taskById(excluded(document, "welcome", "goodbye"), "welcome")).toMatchObject({
      connectedTasks: ["order"],
      connectionConditions: {},
      excludedGlobalTasks: ["goodbye"],
    });
  });

  it("copies tasks with the connections among them, under new ids and names", () => {
    const document = conditioned(flow(), "welcome", "order", { when: "vars.x == 1" });
    const copies = [taskById(document, "welcome"), taskById(document, "order")].filter(
      (task) => task !== undefined,
    );
    const { document: next, ids } = pasted(document, copies, { welcome: { x: 1, y: 2 } });
    expect([...ids]).toEqual(["welcome-2", "order-2"]);
    expect(taskById(next, "welcome-2")).toMatchObject({
      connectedTasks: ["order-2"],
      connectionConditions: { "order-2": { when: "vars.x == 1" } },
      name: "welcome-2",
    });
    expect(taskById(next, "order-2")?.connectedTasks).toEqual(["goodbye"]);
    expect(positionsOf(next)["welcome-2"]).toEqual({ x: 49, y: 50 });
  });

  it("finds a free name", () => {
    expect(freeName("task", new Set(["task", "task-2"]))).toBe("task-3");
  });
});

describe("connections", () => {
  it("connects once, and never a task with itself", () => {
    const document = flow();
    expect(connected(document, "welcome", "order")).toBe(document);
    expect(connected(document, "welcome", "welcome")).toBe(document);
  });

  it("forgets the condition of a connection that goes", () => {
    const document = conditioned(flow(), "welcome", "order", { when: "true", reason: "why" });
    expect(taskById(disconnected(document, "welcome", "order"), "welcome")).toMatchObject({
      connectedTasks: [],
      connectionConditions: {},
    });
  });

  it("tells which tasks a conversation can come to, by global tasks too", () => {
    expect([...reachable(flow())].sort()).toEqual(["goodbye", "order", "welcome"]);
    expect(reachable({ ...flow(), globalTasks: ["lost"] }).has("lost")).toBe(true);
    const excluding = ["welcome", "order", "goodbye"].reduce<VersionDocument>(
      (document, id) => changedTask(document, id, { excludedGlobalTasks: ["lost"] }),
      { ...flow(), globalTasks: ["lost"] },
    );
    expect(reachable(excluding).has("lost")).toBe(false);
  });
});

describe("the document", () => {
  it("keeps positions beside what else the editor's metadata holds", () => {
    const document = placed(
      { ...flow(), uiMetadata: { theme: "x", positions: { order: { x: "no" } } } },
      { welcome: { x: 1.4, y: 2.6 } },
    );
    expect(document.uiMetadata).toEqual({ theme: "x", positions: { welcome: { x: 1, y: 3 } } });
  });

  it("sends nothing that the server sets", () => {
    const sent = sendable(
      { ...flow(), _id: "v1", createdBy: "ada", createdAt: "now", conversationalFlowId: "f" },
      false,
    );
    expect(Object.keys(sent).filter((name) => /created|_id|Flow/.test(name))).toEqual([]);
    expect(sent.draft).toBe(false);
  });

  it("reads and writes by JSON pointer", () => {
    const document = flow();
    expect(valueAt(document, "/tasks/1/connectedTasks/0")).toBe("goodbye");
    expect(withValueAt(document, "/tasks/1/connectedTasks/0", undefined).tasks?.[1]?.connectedTasks).toEqual(
      [],
    );
    expect(valueAt(withValueAt({ "a/b": { "~": 1 } }, "/a~1b/~0", 2), "/a~1b/~0")).toBe(2);
    expect(valueAt(withValueAt({}, "/x/y", 1), "/x/y")).toBe(1);
    expect(withValueAt([1], "/-", 2)).toEqual([1, 2]);
    expect(valueAt(document, "/nothing/0/here")).toBeUndefined();
  });

  it("knows the task that a pointer leads into", () => {
    expect(taskAt(flow(), "/tasks/2/prompt")).toBe("goodbye");
    expect(taskAt(flow(), "/variables/0")).toBeNull();
    expect(taskAt(flow(), "/tasks/99")).toBeNull();
  });

  it("bears documents of any shape", () => {
    expect([...reachable({ draft: true, firstTask: "x" })]).toEqual([]);
    expect(positionsOf({ draft: true, uiMetadata: { positions: null } })).toEqual({});
  });
});
