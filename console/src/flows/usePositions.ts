import { useEffect, useMemo, useState } from "react";
import { type Point, positionsOf, tasksOf, type VersionDocument } from "./document";
import { arranged, layered } from "./layout";

export interface Positions {
  readonly positions: Readonly<Record<string, Point>>;
  /** Those that ELK has found; null until then, and where it is not asked. */
  readonly better: Readonly<Record<string, Point>> | null;
}

/** Positions of the document; of tasks that have none in layers at once, and better when ELK is done. */
export function usePositions(document: VersionDocument): Positions {
  const kept = useMemo(() => positionsOf(document), [document]);
  const [better, setBetter] = useState<Positions["better"]>(null);
  const shape = useMemo(
    () => JSON.stringify(tasksOf(document).map((task) => [task._id, task.connectedTasks ?? []])),
    [document],
  );
  const quick = useMemo(() => layered(document), [document]);
  const unplaced = tasksOf(document).some((task) => kept[task._id] === undefined);
  // biome-ignore lint/correctness/useExhaustiveDependencies: ELK sees the shape alone, so it runs when that changes
  useEffect(() => {
    if (!unplaced) return;
    let wanted = true;
    void arranged(document).then((found) => wanted && setBetter(found));
    return () => {
      wanted = false;
    };
  }, [shape, unplaced]);
  const positions = useMemo(() => ({ ...quick, ...better, ...kept }), [quick, better, kept]);
  return { positions, better };
}
