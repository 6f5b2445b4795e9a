import { MiniMap, useStore } from "@xyflow/react";
import type { ReactNode } from "react";
import { useText } from "../i18n";
import type { TaskNodeType } from "./graph";
import { NODE } from "./layout";

const mapClass = (node: TaskNodeType): string => `map-${node.data.task.type}`;

/** The map of a graph that does not lie in view as a whole: it would cover what is there. */
export function Overview(): ReactNode {
  const say = useText("flows");
  const more = useStore(({ nodes, transform: [x, y, zoom], width, height }) =>
    nodes.some(({ position }) => {
      const [left, top] = [position.x * zoom + x, position.y * zoom + y];
      const [right, bottom] = [left + NODE.width * zoom, top + NODE.height * zoom];
      return left < 0 || top < 0 || right > width || bottom > height;
    }),
  );
  return more ? <MiniMap<TaskNodeType> pannable ariaLabel={say("minimap")} nodeClassName={mapClass} /> : null;
}
