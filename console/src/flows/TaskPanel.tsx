import { type KeyboardEvent, type ReactNode, useEffect, useId, useRef, useState } from "react";
import { useText } from "../i18n";
import { Button, Field, Form } from "../shell/kit";
import {
  changedTask,
  conditioned,
  connected,
  disconnected,
  everywhere,
  excluded,
  nameOf,
  segmentsOf,
  type Task,
  taskById,
  tasksOf,
  type VersionDocument,
  waysFrom,
  withoutTasks,
} from "./document";
import { toChosen } from "./graphFocus";
import { type SchemaNode, schemaAt } from "./jsonSchema";
import { PromptField, type RenderedFor } from "./PromptField";
import { goTo, shownPlace } from "./places";
import { Properties } from "./SchemaForm";

interface PartProps {
  readonly document: VersionDocument;
  readonly task: Task;
  readonly schema: SchemaNode | undefined;
  readonly change: (document: VersionDocument, as?: string) => void;
  readonly select: (id: string | null) => void;
  readonly readOnly: boolean;
}

interface TaskPanelProps extends PartProps {
  readonly flowId: string;
  /** The task that a chosen connection leads to. */
  readonly way: string | undefined;
  /** How often one was asked for: the same one again is shown again. */
  readonly wayAsked: number;
  /** The place of a task to go to. */
  readonly wanted: { readonly id: string; readonly pointer: string } | null;
  readonly renderedFor: RenderedFor;
  readonly renderFor: (next: RenderedFor) => void;
}

/** Shown by hand, above the properties whose forms the schema makes. */
const BY_HAND = new Set([
  "_id",
  "name",
  "type",
  "description",
  "prompt",
  "connectedTasks",
  "connectionConditions",
]);

/** Everything of one task: what it is called and says, where it leads and when, and all else by the schema. */
export function TaskPanel(props: TaskPanelProps): ReactNode {
  const { document, task, way, wayAsked, wanted, schema, change, select, readOnly } = props;
  const say = useText("flows");
  const panel = useRef<HTMLElement>(null);
  const sayShell = useText("shell");
  const heading = useId();
  const id = task._id;
  // The focus stays on the connection in the graph, whose keys are those of the graph.
  // biome-ignore lint/correctness/useExhaustiveDependencies: the same connection of another task is another one
  useEffect(() => {
    if (way !== undefined) shownPlace(panel.current, ["connectionConditions", way]);
  }, [id, way, wayAsked]);
  // biome-ignore lint/correctness/useExhaustiveDependencies: it is gone to once, when it is wanted
  useEffect(() => {
    if (wanted?.id === id) goTo(panel.current, placeIn(task, wanted.pointer));
  }, [wanted]);
  const put = (part: Partial<Task>, as?: string): void =>
    change(changedTask(document, id, part), as === undefined ? undefined : `${id} ${as}`);
  const pressed = (event: KeyboardEvent): void => {
    const first = (event.target as Element).matches(".panel-head button");
    const back = event.key === "Escape" || (event.key === "Tab" && event.shiftKey && first);
    if (back && !event.defaultPrevented && toChosen(panel.current)) event.preventDefault();
  };
  return (
    <section
      ref={panel}
      onKeyDown={pressed}
      className={props.renderedFor.conversation === "" ? "panel task-panel" : "panel task-panel wide"}
      aria-labelledby={heading}
    >
      <header className="panel-head">
        <h2 id={heading}>{nameOf(task)}</h2>
        <Button
          kind="bare"
          aria-label={sayShell("close")}
          onClick={() => {
            toChosen(panel.current);
            select(null);
          }}
        >
          ✕
        </Button>
      </header>
      <div className="panel-body stack">
        <Field at="name" label={say("name")} hint={`_id: ${id}`}>
          {(field) => (
            <input
              {...field}
              disabled={readOnly}
              value={task.name ?? ""}
              onChange={(event) => put({ name: event.target.value }, "name")}
            />
          )}
        </Field>
        <Field at="type" label={say("type")}>
          {(field) => (
            <select
              {...field}
              disabled={readOnly}
              value={task.type}
              onChange={(event) => put(typed(task, event.target.value as Task["type"]), "type")}
            >
              <option value="AIO">{say("typeAio")}</option>
              <option value="AIS">{say("typeAis")}</option>
              <option value="HUM">{say("typeHum")}</option>
            </select>
          )}
        </Field>
        <Field at="description" label={say("whenEntered")} hint={say("whenEnteredHint")}>
          {(field) => (
            <textarea
              {...field}
              rows={3}
              disabled={readOnly}
              value={task.description}
              onChange={(event) => put({ description: event.target.value }, "description")}
            />
          )}
        </Field>
        <div data-at="prompt">
          <PromptField {...props} change={(prompt) => put({ prompt }, "prompt")} />
        </div>
        <Connections {...props} />
        <label className="choice">
          <input
            type="checkbox"
            disabled={readOnly || document.firstTask === id}
            checked={document.firstTask === id}
            onChange={() => change({ ...document, firstTask: id })}
          />
          {say("isFirst")}
        </label>
        <label className="choice">
          <input
            type="checkbox"
            disabled={readOnly}
            checked={document.globalTasks?.includes(id) ?? false}
            onChange={(event) => change(everywhere(document, id, event.target.checked))}
          />
          {say("isEverywhere")}
        </label>
        {schema === undefined ? null : (
          <BySchema document={document} task={task} schema={schema} put={put} readOnly={readOnly} />
        )}
        <Button
          kind="danger"
          disabled={readOnly}
          onClick={() => {
            change(withoutTasks(document, new Set([id])));
            select(null);
          }}
        >
          {say("deleteTask")}
        </Button>
      </div>
    </section>
  );
}

/** A pointer's path in the panel: what is said of a connection stands in its form. */
function placeIn(task: Task, pointer: string): readonly string[] {
  const path = segmentsOf(pointer).slice(2);
  return path[0] === "connectedTasks"
    ? ["connectionConditions", task.connectedTasks?.[Number(path[1])] ?? ""]
    : path;
}

/** A task that a person takes part in needs a way to find one. */
function typed(task: Task, type: Task["type"]): Partial<Task> {
  return type === "AIO" || task.routingParameters !== undefined
    ? { type }
    : { type, routingParameters: { timeout: 60 } };
}

interface BySchemaProps {
  readonly document: VersionDocument;
  readonly task: Task;
  readonly schema: SchemaNode;
  readonly put: (part: Partial<Task>, as?: string) => void;
  readonly readOnly: boolean;
}

function BySchema({ document, task, schema, put, readOnly }: BySchemaProps): ReactNode {
  const say = useText("flows");
  const properties = Object.entries(schemaAt(schema, ["tasks", 0])?.properties ?? {}).filter(
    ([name]) => !BY_HAND.has(name) && (name !== "routingParameters" || task.type !== "AIO"),
  );
  const scope = { root: schema, document, readOnly };
  const routing = schema.$defs?.RoutingParameters;
  const forms = properties.map(
    ([name, node]) => [name, name === "routingParameters" && routing !== undefined ? routing : node] as const,
  );
  return (
    <details className="form-more">
      <summary>{say("allProperties")}</summary>
      <Properties key={task._id} scope={scope} properties={forms} of={task} put={put} />
    </details>
  );
}

type ConnectionsProps = Omit<PartProps, "schema"> & Pick<TaskPanelProps, "way">;

function Connections(props: ConnectionsProps): ReactNode {
  const { document, task, change, readOnly } = props;
  const say = useText("flows");
  const heading = useId();
  const id = task._id;
  const others = tasksOf(document).filter(
    (each) => each._id !== id && !task.connectedTasks?.includes(each._id),
  );
  // Chosen, then connected: the arrow keys go through a list of choices one by one.
  const [chosen, choose] = useState("");
  const to = others.some((each) => each._id === chosen) ? chosen : "";
  const connect = (): void => {
    if (to !== "") change(connected(document, id, to));
  };
  const own = task.connectedTasks ?? [];
  const everywhere = waysFrom(document, task).filter((to) => !own.includes(to));
  const form = (to: string): ReactNode => <ConnectionForm key={to} {...props} to={to} />;
  return (
    <section className="connections" data-at="connectionConditions" aria-labelledby={heading}>
      <h3 id={heading}>{say("connections")}</h3>
      {own.map(form)}
      <Form className="connect" submit={connect}>
        <Field label={say("connectTo")}>
          {(field) => (
            <select
              {...field}
              disabled={readOnly || others.length === 0}
              value={to}
              onChange={(event) => choose(event.target.value)}
            >
              <option value="">–</option>
              {others.map((each) => (
                <option key={each._id} value={each._id}>
                  {nameOf(each)}
                </option>
              ))}
            </select>
          )}
        </Field>
        <Button type="submit" disabled={readOnly || to === ""}>
          {say("connect")}
        </Button>
      </Form>
      {everywhere.length === 0 ? null : (
        <details className="form-more">
          <summary>{say("globalConnections", { count: everywhere.length })}</summary>
          <div className="stack">{everywhere.map(form)}</div>
        </details>
      )}
    </section>
  );
}

function ConnectionForm({
  document,
  task,
  to,
  way,
  change,
  select,
  readOnly,
}: ConnectionsProps & { readonly to: string }): ReactNode {
  const say = useText("flows");
  const condition = task.connectionConditions?.[to];
  const target = taskById(document, to);
  const name = target === undefined ? to : nameOf(target);
  const own = task.connectedTasks?.includes(to) ?? false;
  const put = (part: { when?: string; reason?: string; advance?: string }): void => {
    const next = Object.fromEntries(
      Object.entries({ ...condition, ...part }).filter(([, value]) => value !== ""),
    );
    change(
      conditioned(document, task._id, to, Object.keys(next).length === 0 ? null : next),
      `${task._id} → ${to}`,
    );
  };
  return (
    <fieldset className={to === way ? "form-group chosen" : "form-group"} data-at={to}>
      <legend>
        <button type="button" className="link" onClick={() => select(to)}>
          → {name}
        </button>
      </legend>
      {(["when", "reason"] as const).map((at) => {
        const text = at === "when" ? "condition" : at;
        return (
          <Field key={at} at={at} label={say(text)} hint={say(`${text}Hint`)}>
            {(field) => (
              <input
                {...field}
                className={at === "when" ? "mono" : ""}
                disabled={readOnly}
                value={condition?.[at] ?? ""}
                onChange={(event) => put({ [at]: event.target.value })}
              />
            )}
          </Field>
        );
      })}
      <Field at="advance" label={say("advance")}>
        {(field) => (
          <select
            {...field}
            disabled={readOnly}
            value={condition?.advance ?? ""}
            onChange={(event) => put({ advance: event.target.value })}
          >
            <option value="">{say("advanceAsked")}</option>
            <option value="suggest">{say("advanceSuggest")}</option>
            <option value="auto">{say("advanceAuto")}</option>
          </select>
        )}
      </Field>
      <Button
        kind="bare"
        disabled={readOnly}
        aria-label={say(own ? "disconnectFrom" : "excludeFrom", { name })}
        onClick={() => change(own ? disconnected(document, task._id, to) : excluded(document, task._id, to))}
      >
        {say(own ? "disconnect" : "exclude")}
      </Button>
    </fieldset>
  );
}
