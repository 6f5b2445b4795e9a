import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { lazy, type ReactNode, Suspense, useId } from "react";
import { client, reply, type Schemas } from "../api/client";
import { useText } from "../i18n";
import { fetched } from "../shell/fetched";
import { Badge, Field } from "../shell/kit";
import { useSession } from "../shell/Session";
import { ErrorState, Loading } from "../shell/states";
import { nameOf, sendable, type Task, tasksOf, type VersionDocument } from "./document";
import { useQuiet } from "./verdict";

const TemplateEditor = lazy(() => fetched(() => import("./TemplateEditor")));

type Text = Schemas["PreviewedText"];

/** The conversation whose values fill the templates; `seq` is an entry of its journal, empty for the last. */
export interface RenderedFor {
  readonly conversation: string;
  readonly seq: string;
}

export const FOR_NOBODY: RenderedFor = { conversation: "", seq: "" };

interface PromptFieldProps {
  readonly flowId: string;
  readonly document: VersionDocument;
  readonly task: Task;
  readonly change: (prompt: string) => void;
  readonly readOnly: boolean;
  readonly renderedFor: RenderedFor;
  readonly renderFor: (next: RenderedFor) => void;
}

/** A task's prompt, and beside it what a model would read of it in a conversation that people had. */
export function PromptField(props: PromptFieldProps): ReactNode {
  const say = useText("flows");
  const { document, task, change, readOnly } = props;
  const watches = useSession().may("operator");
  return (
    <div className={props.renderedFor.conversation === "" ? "prompt-field" : "prompt-field beside"}>
      <div className="field">
        <span className="label">{say("prompt")}</span>
        <Suspense fallback={<textarea aria-label={say("prompt")} readOnly rows={6} value={task.prompt} />}>
          <TemplateEditor
            key={task._id}
            label={say("prompt")}
            value={task.prompt}
            variables={document.variables ?? []}
            change={change}
            readOnly={readOnly}
          />
        </Suspense>
        <p className="hint">{say("promptHint")}</p>
      </div>
      {watches ? <Rendering {...props} /> : null}
    </div>
  );
}

function Rendering({
  flowId,
  document,
  task,
  renderedFor,
  renderFor,
}: Omit<PromptFieldProps, "change">): ReactNode {
  const say = useText("flows");
  const recent = useId();
  const listed = useQuery({
    queryKey: ["conversations", "of", flowId],
    queryFn: ({ signal }) =>
      reply(client.GET("/v1/conversations", { params: { query: { flowId, limit: 20 } }, signal })) as Promise<
        Schemas["ConversationPage"]
      >,
    staleTime: 30_000,
  });
  const { conversation, seq } = renderedFor;
  return (
    <div className="stack">
      <div className="row rendered-for">
        <Field label={say("renderFor")} hint={say("renderForHint")}>
          {(field) => (
            <input
              {...field}
              list={recent}
              autoComplete="off"
              spellCheck={false}
              value={conversation}
              onChange={(event) => renderFor({ conversation: event.target.value, seq: "" })}
            />
          )}
        </Field>
        <datalist id={recent}>
          {listed.data?.conversations.map((each) => (
            <option key={each.conversationId} value={each.conversationId}>
              {each.task}
            </option>
          ))}
        </datalist>
        {conversation === "" ? null : (
          <Field label={say("renderSeq")}>
            {(field) => (
              <input
                {...field}
                className="narrow"
                type="number"
                min={1}
                placeholder={say("renderLast")}
                value={seq}
                onChange={(event) => renderFor({ conversation, seq: event.target.value })}
              />
            )}
          </Field>
        )}
      </div>
      {conversation === "" ? null : (
        <Rendered flowId={flowId} document={document} task={task} renderedFor={renderedFor} />
      )}
    </div>
  );
}

type RenderedProps = Pick<PromptFieldProps, "flowId" | "document" | "task" | "renderedFor">;

function Rendered({ flowId, document, task, renderedFor }: RenderedProps): ReactNode {
  const say = useText("flows");
  const heading = useId();
  const asked = useQuiet(document);
  const wanted = useQuiet(renderedFor);
  const found = useQuery({
    queryKey: ["rendered", flowId, asked, task._id, wanted],
    queryFn: ({ signal }) => {
      const seq = Number(wanted.seq);
      const body = {
        conversationId: wanted.conversation,
        task: task._id,
        document: sendable(asked, true),
        ...(wanted.seq === "" ? {} : { atRevision: seq }),
      };
      const params = { path: { flow_id: flowId } };
      return reply(client.POST("/v1/flows/{flow_id}/render", { params, body, signal }));
    },
    placeholderData: keepPreviousData,
    staleTime: Number.POSITIVE_INFINITY,
    gcTime: 60_000,
    retry: false,
  });
  if (found.error !== null) return <ErrorState error={found.error} />;
  if (found.data === undefined) return <Loading />;
  const place = `/tasks/${(document.tasks ?? []).findIndex((each) => each?._id === task._id)}/prompt`;
  const [own, others] = [
    found.data.texts.find((text) => text.pointer === place),
    found.data.texts.filter((text) => text.pointer !== place && text.text !== ""),
  ];
  return (
    <section className="rendered stack" aria-labelledby={heading} aria-busy={found.isFetching}>
      <h3 id={heading}>{say("rendered")}</h3>
      {own === undefined ? null : <OneText text={own} label={say("prompt")} />}
      {others.length === 0 ? null : (
        <details className="form-more">
          <summary>{say("renderedOthers", { count: others.length })}</summary>
          <div className="stack">
            {others.map((text) => (
              <OneText key={text.pointer} text={text} label={labelOf(text.pointer, document)} />
            ))}
          </div>
        </details>
      )}
    </section>
  );
}

/** Whose text it is: a task's name, else the place in the document. */
function labelOf(pointer: string, document: VersionDocument): string {
  const number = /^\/tasks\/(\d+)\//.exec(pointer)?.[1];
  const task = number === undefined ? undefined : tasksOf(document)[Number(number)];
  return task === undefined ? pointer : `${nameOf(task)} · ${pointer}`;
}

const WHY = { no_variable: "unknownVariable", no_value: "unknownValue", not_there: "unknownPlace" } as const;

function OneText({ text, label }: { readonly text: Text; readonly label: string }): ReactNode {
  const say = useText("flows");
  return (
    <div className="stack rendered-text">
      <h4>{label}</h4>
      <pre className="raw">{text.text}</pre>
      {text.unknown.length === 0 && text.problems.length === 0 ? (
        <p>
          <Badge tone="good">{say("allKnown")}</Badge>
        </p>
      ) : null}
      {text.unknown.length === 0 ? null : (
        <ul className="unknown-names">
          {text.unknown.map((each) => (
            <li key={each.name}>
              <code>{each.name}</code> <span className="quiet">{say(WHY[each.reason])}</span>
            </li>
          ))}
        </ul>
      )}
      {text.problems.length === 0 ? null : (
        <ul className="unknown-names">
          {text.problems.map((each) => (
            <li key={`${each.line} ${each.message}`}>
              <Badge tone="warn">{say("line", { number: each.line })}</Badge> {each.message}
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}
