/** Where tasks are drawn that nobody has put anywhere: in layers at once, then better by ELK in a worker. */
import ELK, { type ElkNode } from "elkjs/lib/elk-api";
import workerAddress from "elkjs/lib/elk-worker.min.js?url";
import { type Point, tasksOf, type VersionDocument } from "./document";

export const NODE = { width: 232, height: 96 } as const;
export const GAP = { x: 150, y: 40 } as const;

/** A task's column is its distance from the first task. Takes no time worth mentioning. */
export function layered(document: VersionDocument): Readonly<Record<string, Point>> {
  const tasks = tasksOf(document);
  const byId = new Map(tasks.map((task) => [task._id, task]));
  const column = new Map<string, number>();
  let front = document.firstTask === undefined ? [] : [document.firstTask];
  for (let depth = 0; front.length > 0; depth += 1) {
    const entered = front.filter((id) => byId.has(id) && !column.has(id));
    for (const id of entered) column.set(id, depth);
    front = [...new Set(entered.flatMap((id) => byId.get(id)?.connectedTasks ?? []))];
  }
  const rows = new Map<number, number>();
  const last = Math.max(-1, ...column.values()) + 1;
  return Object.fromEntries(
    tasks.map((task) => {
      const x = column.get(task._id) ?? last;
      const y = rows.get(x) ?? 0;
      rows.set(x, y + 1);
      return [task._id, { x: x * (NODE.width + GAP.x), y: y * (NODE.height + GAP.y) }];
    }),
  );
}

let elk: InstanceType<typeof ELK> | undefined;

function engine(): InstanceType<typeof ELK> {
  elk ??= new ELK({ workerFactory: () => new Worker(workerAddress) });
  return elk;
}

/** Few crossings, left to right. Some hundred milliseconds beside the page for 300 tasks. */
export async function arranged(document: VersionDocument): Promise<Readonly<Record<string, Point>>> {
  const tasks = tasksOf(document);
  const known = new Set(tasks.map((task) => task._id));
  // What is nearer to the start is named first, and so drawn before what leads back to it.
  const column = layered(document);
  const ordered = [...tasks].sort((a, b) => (column[a._id]?.x ?? 0) - (column[b._id]?.x ?? 0));
  const graph: ElkNode = {
    id: "flow",
    layoutOptions: {
      "elk.algorithm": "layered",
      "elk.direction": "RIGHT",
      "elk.layered.spacing.nodeNodeBetweenLayers": String(GAP.x),
      "elk.spacing.nodeNode": String(GAP.y),
      "elk.layered.considerModelOrder.strategy": "NODES_AND_EDGES",
      "elk.layered.cycleBreaking.strategy": "MODEL_ORDER",
    },
    children: ordered.map((task) => ({ id: task._id, ...NODE })),
    edges: ordered.flatMap((task) =>
      (task.connectedTasks ?? [])
        .filter((to) => known.has(to))
        .map((to) => ({ id: `${task._id} ${to}`, sources: [task._id], targets: [to] })),
    ),
  };
  const drawn = await engine().layout(graph);
  return Object.fromEntries((drawn.children ?? []).map(({ id, x = 0, y = 0 }) => [id, { x, y }]));
}
