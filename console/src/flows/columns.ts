interface Joined {
  readonly _id: string;
  readonly connectedTasks?: readonly string[];
}

/** Tasks in columns by how many steps they are from the first, those that nothing leads to in the last. Pure. */
export function inColumns(
  tasks: readonly Joined[],
  first: string | undefined,
): ReadonlyMap<string, { readonly column: number; readonly row: number }> {
  const byId = new Map(tasks.map((task) => [task._id, task]));
  const columns = new Map<string, number>();
  let front = first === undefined ? [] : [first];
  for (let depth = 0; front.length > 0; depth += 1) {
    const entered = front.filter((id) => byId.has(id) && !columns.has(id));
    for (const id of entered) columns.set(id, depth);
    front = [...new Set(entered.flatMap((id) => byId.get(id)?.connectedTasks ?? []))];
  }
  const last = Math.max(-1, ...columns.values()) + 1;
  const filled = new Map<number, number>();
  return new Map(
    tasks.map(({ _id }) => {
      const column = columns.get(_id) ?? last;
      const row = filled.get(column) ?? 0;
      filled.set(column, row + 1);
      return [_id, { column, row }];
    }),
  );
}
