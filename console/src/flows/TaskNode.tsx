import { Handle, type NodeProps, Position } from "@xyflow/react";
import { memo, type ReactNode } from "react";
import { useText } from "../i18n";
import { nameOf } from "./document";
import { notesOf, type TaskNodeType, TYPE_TEXTS } from "./graph";

/** A task as it is drawn. The active one has `aria-current`. */
export const TaskNode = memo(function TaskNode({ data, selected }: NodeProps<TaskNodeType>): ReactNode {
  const say = useText("flows");
  const { task, faded, active, mark, covered } = data;
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
        {notesOf(data).map((note) => (
          <span key={note} className="node-note">
            {say(note)}
          </span>
        ))}
      </div>
      {task.description ? <div className="task-node-text">{task.description}</div> : null}
      <Handle type="source" position={Position.Right} />
    </div>
  );
});
