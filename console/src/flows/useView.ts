import { useReactFlow, type Viewport } from "@xyflow/react";
import { type RefObject, useCallback, useEffect, useRef, useState } from "react";
import type { Point } from "./document";
import type { TaskNodeType } from "./graph";
import { NODE } from "./layout";
import type { Positions } from "./usePositions";

/** Below the tools, which lie over it: in two rows on a narrow screen. */
const TOP = window.innerWidth > 720 ? "72px" : "116px";
export const FIT = {
  maxZoom: 1,
  padding: { top: TOP, right: "24px", bottom: "24px", left: "24px" },
} as const;
/** Below it nobody reads what tasks are called. */
const READABLE = 0.5;
const BEGUN = 0.75;
const MOVED_MS = 200;

/** What somebody looked at in a graph, and the last wish of a task that was followed. */
export interface Seen {
  readonly viewport: Viewport;
  readonly nth: number;
}

interface ViewProps {
  readonly frame: RefObject<HTMLElement | null>;
  readonly better: Positions["better"];
  readonly wanted: { readonly id: string; readonly nth: number } | null;
  /** The task that a talk is in. */
  readonly active: string | null;
  /** Outlives the graph, which another tab takes away. */
  readonly seen: RefObject<Seen | null>;
}

/** What is in view of a graph: as it is drawn in the end the whole, or its first task where nobody could read that, until
 * somebody looks around in it; then what is wanted of it, and the task that a talk is in. */
export function useView({ frame, better, wanted, active, seen }: ViewProps) {
  const flow = useReactFlow<TaskNodeType>();
  const [before] = useState(seen.current);
  const lookedAround = useRef(before !== null);
  const looksAround = useCallback((): void => {
    lookedAround.current = true;
  }, []);
  const [settled, setSettled] = useState(false);
  useEffect(() => setSettled(better !== null), [better]); // true when the nodes have their better places too
  useEffect(() => {
    if (before !== null) void flow.setViewport(before.viewport);
  }, [before, flow]);
  const begun = useRef(Promise.resolve());
  // biome-ignore lint/correctness/useExhaustiveDependencies: with their better places it begins anew
  useEffect(() => {
    // One after the other: two that are under way have one promise, and the second's whole comes after the first task.
    begun.current = begun.current.then(async () => {
      if (lookedAround.current) return;
      await flow.fitView(FIT);
      const first = flow.getNodes().find((node) => node.data.first)?.position;
      if (lookedAround.current || first === undefined || flow.getZoom() >= READABLE) return;
      const middle = (frame.current?.clientHeight ?? 0) / 2;
      void flow.setViewport({
        x: NODE.height - first.x * BEGUN,
        y: middle - (first.y + NODE.height / 2) * BEGUN,
        zoom: BEGUN,
      });
    });
  }, [settled, flow, frame]);
  const nth = wanted?.nth ?? 0;
  const last = useRef(nth);
  last.current = nth;
  useEffect(
    () => () => {
      if (lookedAround.current) seen.current = { viewport: flow.getViewport(), nth: last.current };
    },
    [flow, seen],
  );

  /** The part of the frame that no panel covers, where that leaves room for a task, and what is covered beside it. */
  const room = useCallback(() => {
    const { clientWidth: width = 0, clientHeight: height = 0 } = frame.current ?? {};
    const panel = frame.current?.nextElementSibling?.clientWidth ?? 0;
    const beside = width - panel > NODE.width ? panel : 0;
    return { width: width - beside, height, beside };
  }, [frame]);
  const lookAt = useCallback(
    (at: Point, zoom: number) => {
      const x = at.x + NODE.width / 2 + room().beside / 2 / zoom;
      void flow.setCenter(x, at.y + NODE.height / 2, { zoom, duration: MOVED_MS });
    },
    [flow, room],
  );
  const look = useCallback(
    (id: string) => {
      lookedAround.current = true;
      const at = flow.getNode(id)?.position;
      if (at !== undefined) lookAt(at, 1);
    },
    [flow, lookAt],
  );
  /** Moves nothing where the task that stands there is in view. */
  const keepInView = useCallback(
    (at: Point) => {
      lookedAround.current = true;
      const { x, y, zoom } = flow.getViewport();
      const { width, height } = room();
      const [left, top] = [at.x * zoom + x, at.y * zoom + y];
      const [right, bottom] = [left + NODE.width * zoom, top + NODE.height * zoom];
      if (left < 0 || top < 0 || right > width || bottom > height) lookAt(at, zoom);
    },
    [flow, room, lookAt],
  );
  useEffect(() => {
    if (wanted !== null && wanted.nth !== before?.nth) look(wanted.id);
  }, [wanted, before, look]);
  const followed = useRef(active);
  useEffect(() => {
    const at = active === null || active === followed.current ? undefined : flow.getNode(active)?.position;
    followed.current = active;
    if (at !== undefined) keepInView(at);
  }, [active, flow, keepInView]);
  return { look, keepInView, looksAround };
}
