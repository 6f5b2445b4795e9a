/** Where tasks are drawn that nobody has put anywhere: in layers at once, then better by ELK in a worker. */
import ELK, { type ElkNode } from "elkjs/lib/elk-api";
import workerAddress from "elkjs/lib/elk-worker.min.js?url";
import { inColumns } from "./columns";
import { type Point, tasksOf, type VersionDocument } from "./document";

export const NODE = { width: 232, height: 96 } as const;
export const GAP = { x: 150, y: 40 } as const;

/** A task's column is its distance from the first task. Takes no time worth mentioning. */
export function layered(document: VersionDocument): Readonly<Record<string, Point>> {
  const places = inColumns(tasksOf(document), document.firstTask);
  return Object.fromEntries(
    [...places].map(([id, { column, row }]) => [
      id,
      { x: column * (NODE.width + GAP.x), y: row * (NODE.height + GAP.y) },
    ]),
  );
}

/** The first place from there downwards that no task stands in. */
export function freePlace(positions: Readonly<Record<string, Point>>, { x, y }: Point): Point {
  const taken = Object.values(positions).some(
    (each) => Math.abs(each.x - x) < NODE.width && Math.abs(each.y - y) < NODE.height,
  );
  return taken ? freePlace(positions, { x, y: y + NODE.height + GAP.y }) : { x, y };
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
