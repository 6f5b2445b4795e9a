/** A version's document as the graph and the text show it, and every change that the graph makes to it. Pure. */
import type { Schemas } from "../api/client";

export type Task = Schemas["FlowVersion.Task"];
export type Variable = Schemas["FlowVersion.Variable"];
export type Connection = Schemas["FlowVersion.ConnectionCondition"];
export type VersionDocument = Partial<Schemas["FlowVersion"]> & { draft: boolean };
export type Point = { readonly x: number; readonly y: number };
type TaskType = Task["type"];

const SET_BY_SERVER = ["_id", "conversationalFlowId", "createdBy", "createdAt"] as const;

/** What is sent of a document: without what the server writes at every save. */
export function sendable(document: VersionDocument, draft: boolean): VersionDocument {
  const sent: VersionDocument = { ...document, draft };
  for (const name of SET_BY_SERVER) delete sent[name];
  return sent;
}

export function tasksOf(document: VersionDocument): readonly Task[] {
  return Array.isArray(document.tasks) ? document.tasks.filter((task) => typeof task?._id === "string") : [];
}

/** The name that people and models use: its own, else the id. */
export function nameOf(task: Task): string {
  return task.name?.trim() ? task.name : task._id;
}

export function taskById(document: VersionDocument, id: string | null): Task | undefined {
  return tasksOf(document).find((task) => task._id === id);
}

/** The tasks that can follow a task: those it names, then the global ones that it does not exclude. */
export function waysFrom(document: VersionDocument, task: Task): readonly string[] {
  const excluded = new Set([...(task.excludedGlobalTasks ?? []), task._id]);
  const everywhere = (document.globalTasks ?? []).filter((id) => !excluded.has(id));
  return [...new Set([...(task.connectedTasks ?? []), ...everywhere])];
}

/** The ids of all tasks that a conversation can come to. */
export function reachable(document: VersionDocument): ReadonlySet<string> {
  const byId = new Map(tasksOf(document).map((task) => [task._id, task]));
  const found = new Set<string>();
  const left = document.firstTask === undefined ? [] : [document.firstTask];
  for (let id = left.pop(); id !== undefined; id = left.pop()) {
    const task = byId.get(id);
    if (task === undefined || found.has(id)) continue;
    found.add(id);
    left.push(...waysFrom(document, task));
  }
  return found;
}

// --- positions ------------------------------------------------------------------------------

type Positions = Readonly<Record<string, Point>>;

function isPoint(value: unknown): value is Point {
  return (
    typeof value === "object" &&
    value !== null &&
    Number.isFinite((value as Point).x) &&
    Number.isFinite((value as Point).y)
  );
}

/** Where tasks were put, by id: `uiMetadata.positions`. */
export function positionsOf(document: VersionDocument): Positions {
  const kept: unknown = document.uiMetadata?.positions;
  if (typeof kept !== "object" || kept === null) return {};
  return Object.fromEntries(
    Object.entries(kept).filter((entry): entry is [string, Point] => isPoint(entry[1])),
  );
}

export function placed(document: VersionDocument, positions: Positions): VersionDocument {
  const rounded = Object.fromEntries(
    Object.entries(positions).map(([id, { x, y }]) => [id, { x: Math.round(x), y: Math.round(y) }]),
  );
  return {
    ...document,
    uiMetadata: { ...document.uiMetadata, positions: { ...positionsOf(document), ...rounded } },
  };
}

// --- changes --------------------------------------------------------------------------------

/** A name that none of `taken` is: `task`, `task-2`, `task-3` … */
export function freeName(wanted: string, taken: ReadonlySet<string>): string {
  if (!taken.has(wanted)) return wanted;
  for (let number = 2; ; number += 1) if (!taken.has(`${wanted}-${number}`)) return `${wanted}-${number}`;
}

export function newTask(id: string, type: TaskType = "AIO"): Task {
  return {
    _id: id,
    name: id,
    type,
    description: "",
    prompt: "",
    transitionParameters: [],
    closureConfig: { multiContact: false },
    enabledCheckpoints: [],
    connectedTasks: [],
    ...(type === "AIO" ? {} : { routingParameters: { timeout: 60 } }),
  };
}

/** The document with one more task, which is the first if there was none. */
export function withTask(document: VersionDocument, task: Task, at?: Point): VersionDocument {
  const tasks = [...(document.tasks ?? []), task];
  const next = { ...document, tasks, ...(document.firstTask ? {} : { firstTask: task._id }) };
  return at === undefined ? next : placed(next, { [task._id]: at });
}

export function changedTask(document: VersionDocument, id: string, change: Partial<Task>): VersionDocument {
  return {
    ...document,
    tasks: tasksOf(document).map((task) => (task._id === id ? { ...task, ...change } : task)),
  };
}

export function connected(document: VersionDocument, from: string, to: string): VersionDocument {
  const task = taskById(document, from);
  if (task === undefined || from === to || task.connectedTasks?.includes(to)) return document;
  return changedTask(document, from, { connectedTasks: [...(task.connectedTasks ?? []), to] });
}

export function disconnected(document: VersionDocument, from: string, to: string): VersionDocument {
  const task = taskById(document, from);
  if (task === undefined) return document;
  const { [to]: _gone, ...conditions } = task.connectionConditions ?? {};
  return changedTask(document, from, {
    connectedTasks: (task.connectedTasks ?? []).filter((id) => id !== to),
    ...(task.connectionConditions === undefined ? {} : { connectionConditions: conditions }),
  });
}

/** Without the way from a task to a global one. */
export function excluded(document: VersionDocument, from: string, to: string): VersionDocument {
  const already = taskById(document, from)?.excludedGlobalTasks ?? [];
  return changedTask(disconnected(document, from, to), from, { excludedGlobalTasks: [...already, to] });
}

/** With a task among the global ones, or without it and what then spoke of ways to it that are none. */
export function everywhere(document: VersionDocument, id: string, wanted: boolean): VersionDocument {
  const others = (document.globalTasks ?? []).filter((each) => each !== id);
  if (wanted) return { ...document, globalTasks: [...others, id] };
  const stale = tasksOf(document).filter(
    (task) => task.connectionConditions?.[id] && !task.connectedTasks?.includes(id),
  );
  return stale.reduce(
    (next, task) => disconnected(next, task._id, id),
    nowhereExcluded({ ...document, globalTasks: others }, new Set([id])),
  );
}

function nowhereExcluded(document: VersionDocument, ids: ReadonlySet<string>): VersionDocument {
  return tasksOf(document).reduce((next, { _id, excludedGlobalTasks: before }) => {
    const kept = before?.filter((id) => !ids.has(id));
    return kept?.length === before?.length
      ? next
      : changedTask(next, _id, { excludedGlobalTasks: kept ?? [] });
  }, document);
}

/** What has to hold on the way from one task to another; null takes it away. */
export function conditioned(
  document: VersionDocument,
  from: string,
  to: string,
  condition: Connection | null,
): VersionDocument {
  const { [to]: _before, ...others } = taskById(document, from)?.connectionConditions ?? {};
  return changedTask(document, from, {
    connectionConditions: condition === null ? others : { ...others, [to]: condition },
  });
}

/** Without these tasks, and without every mention of them that would be an error. */
export function withoutTasks(document: VersionDocument, ids: ReadonlySet<string>): VersionDocument {
  let next: VersionDocument = { ...document, tasks: tasksOf(document).filter((task) => !ids.has(task._id)) };
  for (const task of tasksOf(next)) {
    for (const id of ids) {
      if (task.connectedTasks?.includes(id) || task.connectionConditions?.[id])
        next = disconnected(next, task._id, id);
    }
  }
  next = nowhereExcluded(next, ids);
  if (next.globalTasks?.some((id) => ids.has(id))) {
    next = { ...next, globalTasks: next.globalTasks.filter((id) => !ids.has(id)) };
  }
  if (next.firstTask !== undefined && ids.has(next.firstTask))
    next = { ...next, firstTask: tasksOf(next)[0]?._id ?? "" };
  const positions = Object.fromEntries(Object.entries(positionsOf(next)).filter(([id]) => !ids.has(id)));
  return next.uiMetadata?.positions === undefined
    ? next
    : { ...next, uiMetadata: { ...next.uiMetadata, positions } };
}

/** Copies of tasks under new ids, with the connections among them, beside the originals. */
export function pasted(
  document: VersionDocument,
  copies: readonly Task[],
  positions: Positions,
): { readonly document: VersionDocument; readonly ids: ReadonlySet<string> } {
  const taken = new Set(tasksOf(document).flatMap((task) => [task._id, nameOf(task)]));
  const renamed = new Map<string, string>();
  for (const { _id: id } of copies) {
    const free = freeName(id, taken);
    taken.add(free);
    renamed.set(id, free);
  }
  let next = document;
  for (const copy of copies) {
    const id = renamed.get(copy._id) ?? copy._id;
    const within = (copy.connectedTasks ?? []).flatMap(
      (to) => renamed.get(to) ?? (taskById(document, to) ? [to] : []),
    );
    const conditions = Object.entries(copy.connectionConditions ?? {}).map(([to, each]) => [
      renamed.get(to) ?? to,
      each,
    ]);
    const ways = [...within, ...(document.globalTasks ?? [])];
    const known = conditions.filter(([to]) => ways.includes(to as string));
    const task: Task = {
      ...copy,
      _id: id,
      name:
        id === copy._id
          ? nameOf(copy)
          : freeName(nameOf(copy), new Set([...taken].filter((name) => name !== id))),
      connectedTasks: within,
      ...(copy.connectionConditions === undefined ? {} : { connectionConditions: Object.fromEntries(known) }),
    };
    const from = positions[copy._id] ?? { x: 0, y: 0 };
    next = withTask(next, task, { x: from.x + 48, y: from.y + 48 });
  }
  return { document: next, ids: new Set(renamed.values()) };
}

/** A pointer's place in plain segments: `/tasks/0/name` → `["tasks", "0", "name"]`. */
export function segmentsOf(pointer: string): readonly string[] {
  return pointer
    .split("/")
    .slice(1)
    .map((segment) => segment.replace(/~1/g, "/").replace(/~0/g, "~"));
}

export function valueAt(document: unknown, pointer: string): unknown {
  return segmentsOf(pointer).reduce<unknown>(
    (value, segment) =>
      typeof value === "object" && value !== null
        ? (value as Readonly<Record<string, unknown>>)[segment]
        : undefined,
    document,
  );
}

/** The document with another value at a pointer; undefined takes the property or the item away. */
export function withValueAt<T>(document: T, pointer: string, value: unknown): T {
  const [head, ...rest] = segmentsOf(pointer);
  if (head === undefined) return value as T;
  const inner =
    rest.length === 0
      ? ""
      : `/${rest.map((each) => each.replace(/~/g, "~0").replace(/\//g, "~1")).join("/")}`;
  if (Array.isArray(document)) {
    const index = head === "-" ? document.length : Number(head);
    const next = [...(document as unknown[])];
    if (inner === "" && value === undefined) next.splice(index, 1);
    else next[index] = withValueAt(next[index] ?? {}, inner, value);
    return next as T;
  }
  const next = { ...(document as Record<string, unknown>) };
  if (inner === "" && value === undefined) delete next[head];
  else next[head] = withValueAt(next[head] ?? {}, inner, value);
  return next as T;
}

/** The `_id` of the task that a pointer leads into. */
export function taskAt(document: VersionDocument, pointer: string): string | null {
  const [collection, index] = segmentsOf(pointer);
  if (collection !== "tasks" || index === undefined) return null;
  return document.tasks?.[Number(index)]?._id ?? null;
}
