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

/** Tasks in columns by how many steps they are from the first; those that nothing leads to in the last. */
export function boxesOf(tasks: readonly TaskOfVersion[], first: string | undefined): Box[] {
  const byId = new Map(tasks.map((task) => [task.id, task]));
  const column = new Map<string, number>();
  let ring = [first ?? tasks[0]?.id ?? ""].filter((id) => byId.has(id));
  for (let step = 0; ring.length > 0; step++) {
    for (const id of ring) column.set(id, step);
    const next = ring.flatMap((id) => byId.get(id)?.connectedTasks ?? []);
    ring = [...new Set(next)].filter((id) => byId.has(id) && !column.has(id));
  }
  const beyond = Math.max(-1, ...column.values()) + 1;
  const filled = new Map<number, number>();
  return tasks.map((task) => {
    const at = column.get(task.id) ?? beyond;
    const row = filled.get(at) ?? 0;
    filled.set(at, row + 1);
    return { task, x: at * (BOX.width + BOX.across), y: row * (BOX.height + BOX.down) };
  });
}
