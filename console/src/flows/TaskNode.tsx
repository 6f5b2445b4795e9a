import { Handle, type NodeProps, Position } from "@xyflow/react";
import { memo, type ReactNode } from "react";
import { useText } from "../i18n";
import { nameOf } from "./document";
import type { TaskNodeType } from "./graph";

const TYPE_TEXTS = { AIO: "typeAio", AIS: "typeAis", HUM: "typeHum" } as const;

/** A task as it is drawn. The active one has `aria-current`. */
export const TaskNode = memo(function TaskNode({ data, selected }: NodeProps<TaskNodeType>): ReactNode {
  const say = useText("flows");
  const { task, first, everywhere, faded, active, mark, covered } = data;
  const classes = ["task-node", `type-${task.type}`];
  if (selected) classes.push("selected");
  if (faded) classes.push("faded");
  if (covered) classes.push("covered");
  return (
    <div className={classes.join(" ")} data-task={task._id} {...(active ? { "aria-current": "true" } : {})}>
      <Handle type="target" position={Position.Left} />
      <div className="task-node-head">
        <strong>{nameOf(task)}</strong>
        {mark === undefined ? null : (
          <span
            className={`node-mark ${mark}`}
            role="img"
            aria-label={say(mark === "error" ? "hasErrors" : "hasWarnings")}
          >
            !
          </span>
        )}
      </div>
      <div className="task-node-line">
        <span className="node-type">{say(TYPE_TEXTS[task.type] ?? "typeAio")}</span>
        {first ? <span className="node-note">{say("first")}</span> : null}
        {everywhere ? <span className="node-note">{say("everywhere")}</span> : null}
        {faded ? <span className="node-note">{say("unreachable")}</span> : null}
      </div>
      {task.description ? <div className="task-node-text">{task.description}</div> : null}
      <Handle type="source" position={Position.Right} />
    </div>
  );
});
