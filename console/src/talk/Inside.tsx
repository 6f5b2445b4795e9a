import type { ReactNode } from "react";
import { shown } from "../conversations/timeline";
import { useText } from "../i18n";
import { Badge, Button } from "../shell/kit";
import type { Try, Turn } from "./tries";

/** What the engine knows and would send at this point of a try. */
export function Inside({
  now,
  send,
  busy,
}: {
  readonly now: Try;
  readonly send: (turn: Turn) => void;
  readonly busy: boolean;
}): ReactNode {
  const say = useText("talk");
  const known = now.memory.filter((each) => each.value !== null);
  return (
    <div className="talk-inside">
      <details open>
        <summary>{say("nextTasks", { count: now.reachableTasks.length })}</summary>
        <ul className="talk-rows">
          {now.reachableTasks.map((task) => (
            <li key={task.taskId}>
              <Button
                kind="bare"
                disabled={busy || now.status !== "active"}
                onClick={() => send({ changeTask: task.name })}
              >
                → {task.name}
              </Button>
              {task.missingVariables.length > 0 ? (
                <Badge tone="warn">{say("missing", { names: task.missingVariables.join(", ") })}</Badge>
              ) : null}
              {task.condition?.met === false ? (
                <Badge tone="warn">{task.condition.reason ?? say("conditionUnmet")}</Badge>
              ) : null}
            </li>
          ))}
        </ul>
      </details>
      <details open>
        <summary>{say("memory", { known: known.length, all: now.memory.length })}</summary>
        <dl className="talk-memory">
          {now.memory.map((each) => (
            <div key={each.varId}>
              <dt>{each.name}</dt>
              <dd className={each.value === null ? "quiet" : ""}>
                {shown(each.value, Number.POSITIVE_INFINITY)}
                {each.provenance === null ? null : <span className="quiet"> · {each.updatedBy}</span>}
              </dd>
            </div>
          ))}
        </dl>
      </details>
      {now.checkpoints.length === 0 ? null : (
        <details>
          <summary>
            {say("checkpoints", {
              reached: now.checkpoints.filter((each) => each.reached).length,
              all: now.checkpoints.length,
            })}
          </summary>
          <ul className="talk-rows">
            {now.checkpoints.map((each) => (
              <li key={each.id}>
                {each.name} {each.reached ? <Badge tone="good">{say("reached")}</Badge> : null}
                {each.reason === null ? null : <span className="quiet"> {each.reason}</span>}
              </li>
            ))}
          </ul>
        </details>
      )}
      <details>
        <summary>{say("promptTokens", { tokens: now.prompt.tokens })}</summary>
        {now.prompt.parts.map((part) => (
          <details key={part.name} className="talk-part">
            <summary>
              <code>{part.name}</code> <span className="quiet">{say("tokens", { count: part.tokens })}</span>{" "}
              {part.volatile ? <Badge>{say("volatile")}</Badge> : null}
            </summary>
            {/* biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reached by keyboard */}
            <pre tabIndex={0}>{part.text}</pre>
          </details>
        ))}
      </details>
    </div>
  );
}
