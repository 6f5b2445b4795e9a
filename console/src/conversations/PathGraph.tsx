import { useQuery } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { versionQuery } from "../flows/queries";
import { useText } from "../i18n";
import { Loading } from "../shell/states";
import { BOX, type Box, boxesOf, tasksOf } from "./pathLayout";
import { pathOf, type Step, wayOf } from "./timeline";

interface Props {
  readonly flowId: string;
  readonly versionId: string;
  readonly steps: readonly Step[];
  /** The task of the moment that is looked at. */
  readonly current: string;
}

/** The version's tasks with the way that the conversation took through them. */
export function PathGraph({ flowId, versionId, steps, current }: Props): ReactNode {
  const say = useText("conversations");
  const version = useQuery(versionQuery(flowId, versionId));
  if (version.isPending) return <Loading />;
  const tasks = tasksOf(version.data);
  if (tasks.length === 0) return null;
  const path = pathOf(steps).map((each) => each.task);
  const first = tasks.find((task) => task.name === path[0])?.id;
  const boxes = boxesOf(tasks, first);
  const byId = new Map(boxes.map((box) => [box.task.id, box]));
  const visited = new Set(path);
  const taken = new Set(path.slice(1).map((task, index) => `${path[index]} ${task}`));
  const width = Math.max(...boxes.map((box) => box.x)) + BOX.width + 4;
  const height = Math.max(...boxes.map((box) => box.y)) + BOX.height + 34;
  const lines = boxes.flatMap((from) =>
    from.task.connectedTasks.flatMap((id) => {
      const to = byId.get(id);
      return to === undefined ? [] : { from, to, taken: taken.has(`${from.task.name} ${to.task.name}`) };
    }),
  );
  lines.sort((one, other) => Number(one.taken) - Number(other.taken));
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls is reached by the keyboard
    <section className="path-graph" aria-label={say("pathOnGraph")} tabIndex={0}>
      <svg width={width} height={height} viewBox={`-2 -16 ${width} ${height}`} role="img">
        <title>{say("pathOf", { path: wayOf(path) })}</title>
        {lines.map(({ from, to, taken: went }) => (
          <path
            key={`${from.task.id} ${to.task.id}`}
            className={went ? "edge taken" : "edge"}
            d={curve(from, to)}
          />
        ))}
        {boxes.map(({ task, x, y }) => (
          <g
            key={task.id}
            className={visited.has(task.name) ? "visited" : ""}
            aria-current={task.name === current ? "true" : undefined}
          >
            <rect x={x} y={y} width={BOX.width} height={BOX.height} rx="9" />
            <text x={x + BOX.width / 2} y={y + BOX.height / 2 + 4} textAnchor="middle">
              {task.name.length > 20 ? `${task.name.slice(0, 19)}…` : task.name}
            </text>
          </g>
        ))}
      </svg>
    </section>
  );
}

function curve(from: Box, to: Box): string {
  const middle = BOX.height / 2;
  if (to.x > from.x) {
    const [x1, y1, x2, y2] = [from.x + BOX.width, from.y + middle, to.x, to.y + middle];
    const bend = (x1 + x2) / 2;
    return `M${x1} ${y1} C${bend} ${y1} ${bend} ${y2} ${x2} ${y2}`;
  }
  const [x1, y1] = [from.x + BOX.width / 2, from.y + BOX.height];
  const [x2, y2] = [to.x + BOX.width / 2, to.y + BOX.height];
  const low = Math.max(y1, y2) + 16;
  return `M${x1} ${y1} C${x1} ${low} ${x2} ${low} ${x2} ${y2}`;
}
