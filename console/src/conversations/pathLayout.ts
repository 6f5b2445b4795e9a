import { inColumns } from "../flows/columns";

export interface TaskOfVersion {
  readonly id: string;
  readonly name: string;
  readonly connectedTasks: readonly string[];
}

export interface Box {
  readonly task: TaskOfVersion;
  readonly x: number;
  readonly y: number;
}

export const BOX = { width: 150, height: 38, across: 70, down: 20 } as const;

/** The tasks of a version's document as it was saved; what is no task is left out. */
export function tasksOf(document: unknown): TaskOfVersion[] {
  const tasks = (document as { tasks?: unknown } | undefined)?.tasks;
  if (!Array.isArray(tasks)) return [];
  return tasks.flatMap((task: Record<string, unknown> | null) => {
    if (typeof task?._id !== "string") return [];
    const connected = Array.isArray(task.connectedTasks) ? task.connectedTasks : [];
    return {
      id: task._id,
      name: typeof task.name === "string" ? task.name : task._id,
      connectedTasks: connected.filter((each): each is string => typeof each === "string"),
    };
  });
}

/** Where the tasks are drawn: in columns, from the first. */
export function boxesOf(tasks: readonly TaskOfVersion[], first: string | undefined): Box[] {
  const joined = tasks.map(({ id, connectedTasks }) => ({ _id: id, connectedTasks }));
  const places = inColumns(joined, first ?? tasks[0]?.id);
  return tasks.map((task) => {
    const { column = 0, row = 0 } = places.get(task.id) ?? {};
    return { task, x: column * (BOX.width + BOX.across), y: row * (BOX.height + BOX.down) };
  });
}
