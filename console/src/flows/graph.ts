/** What React Flow draws of a document. Pure. */
import { type Edge, MarkerType, type Node } from "@xyflow/react";
import { nameOf, type Point, reachable, type Task, tasksOf, type VersionDocument } from "./document";

export type Mark = "error" | "warning";

export interface TaskData extends Record<string, unknown> {
  readonly task: Task;
  readonly first: boolean;
  readonly everywhere: boolean;
  readonly faded: boolean;
  readonly active: boolean;
  readonly mark: Mark | undefined;
  /** Whether flow tests came to it, where they were played. */
  readonly covered: boolean | undefined;
}

export type TaskNodeType = Node<TaskData, "task">;

export interface Shown {
  readonly active: string | null;
  readonly selected: ReadonlySet<string>;
  readonly marks: ReadonlyMap<string, Mark>;
  readonly covered: ReadonlySet<string> | null;
}

export const TYPE_TEXTS = { AIO: "typeAio", AIS: "typeAis", HUM: "typeHum" } as const;

/** What is noted of a task beside its name and type. */
export function notesOf({
  first,
  everywhere,
  faded,
}: TaskData): readonly ("first" | "everywhere" | "unreachable")[] {
  return [
    ...(first ? (["first"] as const) : []),
    ...(everywhere ? (["everywhere"] as const) : []),
    ...(faded ? (["unreachable"] as const) : []),
  ];
}

/** How a task and a connection are told to who hears them. */
export interface Told {
  readonly task: (data: TaskData) => string;
  readonly aTask: string;
  readonly aWay: string;
}

export function nodesOf(
  document: VersionDocument,
  positions: Readonly<Record<string, Point>>,
  shown: Shown,
  told: Told,
): TaskNodeType[] {
  const found = reachable(document);
  const everywhere = new Set(document.globalTasks ?? []);
  return tasksOf(document).map((task) => {
    const data: TaskData = {
      task,
      first: task._id === document.firstTask,
      everywhere: everywhere.has(task._id),
      faded: !found.has(task._id),
      active: task._id === shown.active,
      mark: shown.marks.get(task._id),
      covered: shown.covered?.has(task._id) || shown.covered?.has(nameOf(task)),
    };
    return {
      id: task._id,
      type: "task",
      position: positions[task._id] ?? { x: 0, y: 0 },
      selected: shown.selected.has(task._id),
      ariaLabel: told.task(data),
      domAttributes: { "aria-roledescription": told.aTask },
      data,
    };
  });
}

/** A connection's label: its condition, then the variables that its target requires. */
function labelOf(from: Task, to: Task, variables: ReadonlyMap<string, string>): string {
  const condition = from.connectionConditions?.[to._id];
  const guards = (to.transitionParameters ?? [])
    .filter((each) => each.required)
    .map((each) => variables.get(each.variableId) ?? each.variableId);
  const parts = [condition?.when, condition?.advance === undefined ? undefined : `→ ${condition.advance}`];
  if (guards.length > 0) parts.push(`[${guards.join(", ")}]`);
  return parts.filter((part) => part !== undefined && part !== null && part !== "").join(" ");
}

/** A connection's id, as the graph has it. */
function wayId(from: string, to: string): string {
  return `${from} → ${to}`;
}

/** The one connection that is chosen, if it is one. */
export function onlyWay(
  document: VersionDocument,
  chosen: ReadonlySet<string>,
): { readonly task: Task; readonly to: string } | undefined {
  if (chosen.size === 0) return undefined;
  const found = tasksOf(document).flatMap((task) =>
    (task.connectedTasks ?? []).filter((to) => chosen.has(wayId(task._id, to))).map((to) => ({ task, to })),
  );
  return found.length === 1 ? found[0] : undefined;
}

export function edgesOf(document: VersionDocument, selected: ReadonlySet<string>, told: Told): Edge[] {
  const tasks = new Map(tasksOf(document).map((task) => [task._id, task]));
  const variables = new Map((document.variables ?? []).map((each) => [each._id, each.name]));
  return [...tasks.values()].flatMap((from) =>
    (from.connectedTasks ?? []).flatMap((id): Edge[] => {
      const to = tasks.get(id);
      if (to === undefined) return [];
      const label = labelOf(from, to, variables);
      const conditioned = Boolean(from.connectionConditions?.[id]?.when);
      return [
        {
          id: wayId(from._id, id),
          type: "way",
          source: from._id,
          target: id,
          label,
          ariaLabel: `${nameOf(from)} → ${nameOf(to)}${label === "" ? "" : `: ${label}`}`,
          domAttributes: { "aria-roledescription": told.aWay },
          className: conditioned ? "conditioned" : "",
          selected: selected.has(wayId(from._id, id)),
          markerEnd: { type: MarkerType.ArrowClosed, width: 18, height: 18 },
        },
      ];
    }),
  );
}

/** The connections of tasks that are dragged are layers of their own, above the others, which stay as they are: so a
 * frame paints a few connections, not all. */
export function inOwnLayers(edges: Edge[], dragged: ReadonlySet<string>): Edge[] {
  if (dragged.size === 0) return edges;
  return edges.map((edge) =>
    dragged.has(edge.source) || dragged.has(edge.target)
      ? { ...edge, className: `${edge.className} dragged`, zIndex: 1 }
      : edge,
  );
}

/** What says the same as before is the object of before, the list of all too: what is another object React Flow looks
 * at anew. */
export function reused<Item extends { readonly id: string }>(before: Item[], next: Item[]): Item[] {
  const known = new Map(before.map((each) => [each.id, each]));
  const kept = next.map((each) => {
    const old = known.get(each.id);
    return old !== undefined && alike(old, each, 1) ? old : each;
  });
  return kept.length === before.length && kept.every((each, at) => each === before[at]) ? before : kept;
}

function alike(one: unknown, other: unknown, deep: number): boolean {
  if (Object.is(one, other)) return true;
  if (deep < 0 || typeof one !== "object" || typeof other !== "object" || !one || !other) return false;
  const names = Object.keys(one) as never[];
  return (
    names.length === Object.keys(other).length &&
    names.every((name) => alike(one[name], other[name], deep - 1))
  );
}
