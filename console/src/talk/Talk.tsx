import { type ReactNode, useEffect, useId, useRef, useState } from "react";
import type { HumanOutcome } from "../conversations/timeline";
import type { VersionDocument } from "../flows/document";
import { useText } from "../i18n";
import { Badge, Button, Field } from "../shell/kit";
import { useSession } from "../shell/Session";
import { ErrorState } from "../shell/states";
import { FlowTests } from "./FlowTests";
import { HumanPart, TextForm } from "./HumanPart";
import { Inside } from "./Inside";
import { type Caller, type Channel, type Line, type Try, type Turn, useTry } from "./tries";
import "./talk.css";

export interface TalkProps {
  readonly flowId: string;
  readonly versionId: string;
  readonly document: VersionDocument;
  readonly dirty: boolean;
  /** Errors that keep the document from running. */
  readonly errors: number;
  readonly active: (taskId: string | null) => void;
  readonly covered: (tasks: ReadonlySet<string> | null) => void;
}

/** A chat with the document as it stands: it runs in memory, nothing is published. */
export function Talk({ flowId, versionId, document, dirty, errors, active, covered }: TalkProps): ReactNode {
  const say = useText("talk");
  const heading = useId();
  const { may } = useSession();
  const [caller, setCaller] = useState<Caller>({});
  const { talking, going, forget } = useTry(flowId, document, (now) => active(now?.task.taskId ?? null));
  const { now, lines } = talking;
  if (!may("designer")) return null;
  const send = (turn: Turn, sent?: () => void): void =>
    going.mutate({ turn, caller }, sent === undefined ? {} : { onSuccess: sent });
  return (
    <section className="panel talk" aria-labelledby={heading}>
      <header className="panel-head">
        <h2 id={heading}>{say("title")}</h2>
        {now === null ? null : (
          <Button kind="bare" onClick={forget}>
            {say("startOver")}
          </Button>
        )}
      </header>
      <Status now={now} />
      {now !== null && talking.of !== document ? <p className="talk-note">{say("changedSince")}</p> : null}
      <Lines lines={lines} />
      <ErrorState error={going.error} did />
      {now !== null && now.modelFailed !== null ? (
        <p className="talk-note">{say("modelFailed", { why: now.modelFailed })}</p>
      ) : null}
      {now !== null && now.status === "active" ? (
        <HumanPart now={now} send={send} busy={going.isPending} />
      ) : null}
      {now === null ? <CallerChoice document={document} caller={caller} change={setCaller} /> : null}
      {now === null || now.status === "active" ? (
        <TextForm
          label={say("message")}
          action={say("send")}
          kind="primary"
          busy={going.isPending}
          send={(text, sent) => send({ text }, sent)}
        >
          {errors > 0 && now === null ? <p className="hint wrong">{say("errorsFirst")}</p> : null}
          <p className="hint">{say("commands")}</p>
        </TextForm>
      ) : (
        <ComeBack
          now={now}
          channels={talking.of?.channels ?? [now.channel]}
          send={send}
          busy={going.isPending}
        />
      )}
      {now === null ? null : <Inside now={now} send={send} busy={going.isPending} />}
      <FlowTests flowId={flowId} versionId={versionId} dirty={dirty} now={now} covered={covered} />
    </section>
  );
}

const STATUS_TEXTS = { active: "active", between_contacts: "between", closed: "closed" } as const;

/** The active task, told to screen readers as it changes. */
function Status({ now }: { readonly now: Try | null }): ReactNode {
  const say = useText("talk");
  return (
    <p role="status" className="talk-status">
      {now === null ? (
        <span className="quiet">{say("notBegun")}</span>
      ) : (
        <>
          {say("activeTask")} <strong>{now.task.name}</strong>{" "}
          <Badge tone={now.status === "active" ? "good" : "neutral"}>{say(STATUS_TEXTS[now.status])}</Badge>
          {now.task.status === null ? null : <code> {now.task.status}</code>}
        </>
      )}
    </p>
  );
}

function Lines({ lines }: { readonly lines: readonly Line[] }): ReactNode {
  const say = useText("talk");
  const end = useRef<HTMLDivElement>(null);
  // biome-ignore lint/correctness/useExhaustiveDependencies: the newest line is brought into view when there is one
  useEffect(() => {
    if (end.current !== null) end.current.scrollTop = end.current.scrollHeight;
  }, [lines.length]);
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reached by keyboard
    <div className="talk-lines" ref={end} role="log" aria-label={say("messages")} tabIndex={0}>
      {lines.length === 0 ? <p className="quiet">{say("hint")}</p> : null}
      {lines.map((line) => (
        <LineShown key={line.key} line={line} />
      ))}
    </div>
  );
}

function LineShown({ line: { action } }: { readonly line: Line }): ReactNode {
  const say = useText("talk");
  if (action.problem !== null) return <p className="talk-event bad">{action.problem.detail}</p>;
  const done = <Done action={action} />;
  const refused = action.refusal;
  return (
    <>
      {refused === null ? done : null}
      {refused === null ? null : (
        <div className="talk-event bad">
          <strong>{say("refused", { task: action.task ?? "" })}</strong> <code>{refused.code}</code>
          <div>{refused.reason}</div>
          {refused.condition === undefined ? null : <ConditionShown condition={refused.condition} />}
        </div>
      )}
      {action.advanced === null ? null : (
        <p className="talk-event">{say("advanced", { task: action.advanced })}</p>
      )}
    </>
  );
}

function Done({ action }: { readonly action: Line["action"] }): ReactNode {
  const told = useTold(action);
  if (action.kind === "utterance") return <p className={`talk-said ${action.by}`}>{action.text}</p>;
  return <p className="talk-event">{told}</p>;
}

function useTold(action: Line["action"]): string {
  const say = useText("talk");
  const sayOf = useText("conversations");
  const outcome = action.outcome as HumanOutcome | null;
  switch (action.kind) {
    case "change_task":
      return say("changed", { task: action.task ?? "" });
    case "memory":
      return say("remembered", { names: action.variables.join(", ") });
    case "contact":
      return say("contactBegan");
    case "human_task":
      return outcome === "waiting" || outcome === null
        ? say("waits", { text: action.text ?? "" })
        : sayOf("stepHuman", { outcome: sayOf(`did_${outcome}`) });
    case "end_contact":
      return say("contactEnded");
    default:
      return action.kind;
  }
}

type Condition = NonNullable<NonNullable<Line["action"]["refusal"]>["condition"]>;

/** Each comparison of a condition, with what it was judged by. */
function ConditionShown({ condition }: { readonly condition: Condition }): ReactNode {
  return (
    <ul className="talk-parts">
      {condition.parts.map((part) => (
        <li key={part.expression}>
          <code>{part.expression}</code>: {part.truth}
        </li>
      ))}
    </ul>
  );
}

interface CallerChoiceProps {
  readonly document: VersionDocument;
  readonly caller: Caller;
  readonly change: (caller: Caller) => void;
}

/** By what, and in which language, the user comes: of those that the document has. */
function CallerChoice({ document, caller, change }: CallerChoiceProps): ReactNode {
  const say = useText("talk");
  const { channels = [], supportedLanguages: languages = [], defaultLanguage } = document;
  return (
    <div className="talk-caller">
      <Field label={say("channel")}>
        {(field) => (
          <select
            {...field}
            value={caller.channel ?? channels[0]}
            onChange={(event) =>
              change({ ...caller, channel: channels.find((each) => each === event.target.value) })
            }
          >
            {channels.map((each) => (
              <option key={each}>{each}</option>
            ))}
          </select>
        )}
      </Field>
      <Field label={say("language")}>
        {(field) => (
          <select
            {...field}
            value={caller.language ?? defaultLanguage}
            onChange={(event) => change({ ...caller, language: event.target.value })}
          >
            {languages.map((each) => (
              <option key={each}>{each}</option>
            ))}
          </select>
        )}
      </Field>
    </div>
  );
}

function ComeBack({
  now,
  channels,
  send,
  busy,
}: {
  readonly now: Try;
  readonly channels: readonly Channel[];
  readonly send: (turn: Turn) => void;
  readonly busy: boolean;
}): ReactNode {
  const say = useText("talk");
  const [channel, setChannel] = useState<Channel>(now.channel);
  return (
    <div className="talk-form">
      <select
        aria-label={say("channel")}
        value={channel}
        onChange={(event) => setChannel(channels.find((each) => each === event.target.value) ?? now.channel)}
      >
        {channels.map((each) => (
          <option key={each}>{each}</option>
        ))}
      </select>
      <Button kind="primary" disabled={busy} onClick={() => send({ newContact: { channel } })}>
        {say("comeBack")}
      </Button>
    </div>
  );
}
