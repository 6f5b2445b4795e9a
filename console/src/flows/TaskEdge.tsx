import { BaseEdge, type Edge, type EdgeProps } from "@xyflow/react";
import { memo, type ReactNode } from "react";
import { cutTo, wayOf } from "./ways";

/** A connection as it is drawn. Its whole label is there where it is selected, and under the pointer. */
export const TaskEdge = memo(function TaskEdge(props: EdgeProps<Edge>): ReactNode {
  const { id, sourceX, sourceY, targetX, targetY, label, markerEnd, interactionWidth, selected } = props;
  const way = wayOf(sourceX, sourceY, targetX, targetY);
  const whole = typeof label === "string" ? label : "";
  return (
    <g>
      {whole === "" ? null : <title>{whole}</title>}
      <BaseEdge
        id={id}
        path={way.path}
        label={selected ? whole : cutTo(way.room, whole)}
        labelX={way.label.x}
        labelY={way.label.y}
        labelBgPadding={[4, 2]}
        labelBgBorderRadius={4}
        {...(markerEnd === undefined ? {} : { markerEnd })}
        {...(interactionWidth === undefined ? {} : { interactionWidth })}
      />
    </g>
  );
});
