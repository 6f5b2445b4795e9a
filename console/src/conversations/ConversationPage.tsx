import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Tabs } from "radix-ui";
import { memo, type ReactNode, useCallback, useEffect, useMemo, useRef, useState } from "react";
import { Link, useParams, useSearchParams } from "react-router";
import type { Schemas } from "../api/client";
import { VersionLink } from "../flows/VersionField";
import { OF_THE_DAY, SECONDS, useMoment, useText } from "../i18n";
import { conversationAddress } from "../shell/addresses";
import { Badge, Button, PageHead } from "../shell/kit";
import { useSession } from "../shell/Session";
import { useSeen } from "../shell/seen";
import { ErrorState, Loading, ScopeMissing } from "../shell/states";
import { Table } from "../shell/Table";
import { Actions } from "./Actions";
import { type Follow, LiveDot, STATUS_TONES, useFollowed } from "./ConversationsPage";
import { PathGraph } from "./PathGraph";
import { conversationQuery, followJournal, journalQuery, type Moment, momentQuery } from "./queries";
import { pathOf, type Step, shown, stepOf } from "./timeline";
import "./conversations.css";

type Conversation = Schemas["ConversationReply"];

const SIGNS: Readonly<Record<Step["kind"], string>> = {
  started: "▶",
  said: "“",
  entered: "→",
  refused: "✕",
  values: "=",
  human: "☺",
  ended: "■",
  forked: "⑂",
  moved: "⇢",
  other: "·",
};

export default function ConversationPage(): ReactNode {
  const { may } = useSession();
  const id = useParams()["*"] ?? "";
  if (!may("operator")) return <ScopeMissing scope="operator" />;
  return <OneConversation key={id} id={id} />;
}

function OneConversation({ id }: { readonly id: string }): ReactNode {
  const say = useText("conversations");
  const conversation = useQuery(conversationQuery(id));
  const journal = useQuery(journalQuery(id));
  const queries = useQueryClient();
  const follow = useCallback<Follow>(
    (live, signal) => followJournal(queries, id, live, signal),
    [queries, id],
  );
  const live = useFollowed(follow, journal.isSuccess);
  const [address, setAddress] = useSearchParams();
  const steps = useMemo(() => (journal.data ?? []).map(stepOf), [journal.data]);
  const latest = steps.at(-1)?.seq ?? 0;
  const wanted = Number(address.get("at"));
  const seq = steps.some((step) => step.seq === wanted) ? wanted : latest;
  const choose = useRef((_: number): void => undefined);
  choose.current = (next) => setAddress(next === latest ? {} : { at: String(next) }, { replace: true });
  const select = useCallback((next: number) => choose.current(next), []); // the same for every step that is drawn

  const failed = conversation.error ?? journal.error;
  const retry = (): void => {
    void conversation.refetch();
    void journal.refetch();
  };
  const trail = <Link to="/conversations">{say("title")}</Link>;
  if (conversation.data === undefined || journal.data === undefined) {
    return (
      <>
        <PageHead title={id} trail={trail} />
        {failed === null ? <Loading /> : <ErrorState error={failed} retry={retry} />}
      </>
    );
  }
  const known = conversation.data;
  return (
    <>
      <PageHead
        title={id}
        trail={trail}
        intro={
          <span className="row">
            <Badge tone={STATUS_TONES[known.status]}>{say(`status_${known.status}`)}</Badge>
            <VersionLink flowId={known.flowId} versionId={known.versionId} withFlow />
            {known.tag === null ? null : <Badge tone="accent">{known.tag}</Badge>}
            <span>{say(`channel_${known.channel}`)}</span>
            {known.forkedFrom === null ? null : (
              <Link to={`${conversationAddress(known.forkedFrom.conversationId)}?at=${known.forkedFrom.seq}`}>
                {say("forkOf", { id: known.forkedFrom.conversationId })}
              </Link>
            )}
            <span role="status">
              <LiveDot live={live} /> {live ? say("live") : say("notLive")}
            </span>
          </span>
        }
      >
        <Actions conversation={known} rows={journal.data} seq={seq} latest={latest} />
      </PageHead>
      <div className="conversation">
        <Timeline id={id} steps={steps} seq={seq} select={select} />
        <div className="side" id="moment" tabIndex={-1}>
          <Rewind steps={steps} seq={seq} select={select} />
          <MomentPanel conversation={known} steps={steps} seq={seq} latest={latest} />
        </div>
      </div>
    </>
  );
}

interface Selecting {
  readonly steps: readonly Step[];
  readonly seq: number;
  readonly select: (seq: number) => void;
}

const Timeline = memo(function Timeline({
  id,
  steps,
  seq,
  select,
}: Selecting & { readonly id: string }): ReactNode {
  const say = useText("conversations");
  const list = useRef<HTMLOListElement>(null);
  const [refusals, setRefusals] = useState(false);
  const count = steps.filter((step) => step.kind === "refused").length;
  const shown = refusals ? steps.filter((step) => step.kind === "refused") : steps;
  // biome-ignore lint/correctness/useExhaustiveDependencies: it is in view in the list of refusals too
  useEffect(() => {
    const frame = list.current;
    const step = frame?.querySelector<HTMLElement>(`[data-seq="${seq}"]`);
    if (!frame || !step) return; // only the list itself scrolls, never the page
    const [top, bottom] = [step.offsetTop, step.offsetTop + step.offsetHeight];
    if (top < frame.scrollTop) frame.scrollTop = top;
    else if (bottom > frame.scrollTop + frame.clientHeight) frame.scrollTop = bottom - frame.clientHeight;
  }, [seq, refusals]);
  return (
    <section className="entries" aria-label={say("timeline")}>
      {count === 0 ? null : (
        <label className="choice">
          <input type="checkbox" checked={refusals} onChange={(event) => setRefusals(event.target.checked)} />
          {say("onlyRefusals", { count })}
        </label>
      )}
      <a className="skip" href="#moment">
        {say("skipEntries")}
      </a>
      {/* What comes is told to whoever hears the page. Shown otherwise it is another list, of which nothing has come. */}
      <ol key={String(refusals)} className="timeline" ref={list} aria-live="polite" aria-relevant="additions">
        {shown.map((step, index) => (
          <li key={step.seq} className={`step ${step.kind}`} data-seq={step.seq}>
            <span className="bead" aria-hidden="true">
              {SIGNS[step.kind]}
            </span>
            <StepButton
              id={id}
              step={step}
              dated={shown[index - 1]?.day !== step.day}
              current={step.seq === seq}
              select={select}
            />
          </li>
        ))}
      </ol>
    </section>
  );
});

const StepButton = memo(function StepButton(props: {
  readonly id: string;
  readonly step: Step;
  /** Whether it is the first of its day. */
  readonly dated: boolean;
  readonly current: boolean;
  readonly select: (seq: number) => void;
}): ReactNode {
  const { id, step, dated, current, select } = props;
  const say = useText("conversations");
  const moment = useMoment(dated ? SECONDS : OF_THE_DAY);
  return (
    <button type="button" aria-current={current ? "step" : undefined} onClick={() => select(step.seq)}>
      <span className="what">
        <strong>{useTitle(step)}</strong>
        <span className="when">
          {step.seq} · {moment(step.at)}
        </span>
      </span>
      {step.kind === "said" ? <span className="bubble">{step.subject}</span> : null}
      {step.kind === "refused" ? <Reason id={id} step={step} /> : null}
      {step.rationale === null ? null : <span className="rationale">{step.rationale}</span>}
      {step.values.map((value) => (
        <span key={value.id} className="value">
          <code>{value.id}</code> = {shown(value.value)}{" "}
          {value.by === null ? null : <small className="quiet">{say("from_by", { who: value.by })}</small>}
        </span>
      ))}
    </button>
  );
});

function useTitle(step: Step): string {
  const say = useText("conversations");
  const subject = step.subject ?? "";
  switch (step.kind) {
    case "started":
      return say("stepStarted", { task: step.task ?? "" });
    case "said":
      return step.speaker === "user" ? say("stepUser") : say("stepAgent");
    case "entered":
      return step.op === "advance"
        ? say("stepAdvanced", { task: step.task ?? "" })
        : say("stepEntered", { task: step.task ?? subject });
    case "refused":
      return say("stepRefused", { task: subject });
    case "values":
      return step.op === "extraction" ? say("stepHeard") : say("stepTool", { who: step.by });
    case "human":
      return say("stepHuman", { outcome: subject });
    case "ended":
      return say("stepEnded");
    case "forked":
      return say("stepForked");
    case "moved":
      return say("stepMoved");
    case "other":
      return step.op;
  }
}

/** The reason of a refusal as the agent was told: it stands in the reply of then, which is asked for once it is seen. A
 * journal may have a thousand. */
function Reason({ id, step }: { readonly id: string; readonly step: Step }): ReactNode {
  const [seen, watched] = useSeen();
  const moment = useQuery({ ...momentQuery(id, step.seq), enabled: seen });
  return (
    <span className="reason" ref={watched}>
      {reasonOf(moment.data?.reply) ?? step.code}
    </span>
  );
}

function reasonOf(reply: string | null | undefined): string | null {
  if (!reply) return null;
  try {
    return (JSON.parse(reply) as { reason?: string }).reason ?? null;
  } catch {
    return null;
  }
}

function Rewind({ steps, seq, select }: Selecting): ReactNode {
  const say = useText("conversations");
  const index = steps.findIndex((step) => step.seq === seq);
  const step = steps[index];
  const go = (to: number): void => {
    const target = steps[Math.max(0, Math.min(steps.length - 1, to))];
    if (target !== undefined) select(target.seq);
  };
  const title = step === undefined ? "" : say("atEntry", { seq, of: steps.at(-1)?.seq ?? 0 });
  return (
    <section className="card rewind" aria-label={say("rewind")}>
      <div className="row apart">
        <h2>{title}</h2>
        <div className="row">
          <Button kind="bare" aria-label={say("earlier")} disabled={index <= 0} onClick={() => go(index - 1)}>
            ◀
          </Button>
          <Button
            kind="bare"
            aria-label={say("later")}
            disabled={index >= steps.length - 1}
            onClick={() => go(index + 1)}
          >
            ▶
          </Button>
          <Button disabled={index >= steps.length - 1} onClick={() => go(steps.length - 1)}>
            {say("now")}
          </Button>
        </div>
      </div>
      <input
        type="range"
        aria-label={say("entry")}
        aria-valuetext={title}
        min={0}
        max={Math.max(0, steps.length - 1)}
        value={index}
        onChange={(event) => go(Number(event.target.value))}
      />
    </section>
  );
}

function MomentPanel(props: {
  readonly conversation: Conversation;
  readonly steps: readonly Step[];
  readonly seq: number;
  readonly latest: number;
}): ReactNode {
  const { conversation, steps, seq, latest } = props;
  const say = useText("conversations");
  const { may } = useSession();
  const moment = useQuery({
    ...momentQuery(conversation.conversationId, seq),
    enabled: seq > 0,
    placeholderData: (before) => before,
  });
  if (moment.error !== null) return <ErrorState error={moment.error} retry={() => void moment.refetch()} />;
  if (moment.data === undefined) return <Loading />;
  const then = moment.data;
  const upTo = steps.filter((step) => step.seq <= seq);
  return (
    <Tabs.Root defaultValue="state" className="card stack">
      <Tabs.List className="tabs scrolling" aria-label={say("moment")}>
        {(["state", "prompt", "path", "raw"] as const).map((each) => (
          <Tabs.Trigger key={each} className="tab" value={each}>
            {say(each)}
          </Tabs.Trigger>
        ))}
      </Tabs.List>
      <Tabs.Content value="state" className="stack">
        <State then={then} conversation={seq === latest ? conversation : null} />
      </Tabs.Content>
      <Tabs.Content value="prompt" className="stack">
        <p className="quiet">{say("promptIntro", { count: then.prompt.length })}</p>
        <Block label={say("prompt")} text={then.prompt} />
      </Tabs.Content>
      <Tabs.Content value="path" className="stack">
        {may("designer") ? (
          <PathGraph
            flowId={conversation.flowId}
            versionId={conversation.versionId}
            steps={upTo}
            current={then.state.task}
          />
        ) : null}
        <p>
          {pathOf(upTo)
            .map((each) => each.task)
            .join(" → ")}
        </p>
      </Tabs.Content>
      <Tabs.Content value="raw" className="stack">
        <p className="quiet">{say("rawIntro")}</p>
        <Block label={say("raw")} text={pretty(then.reply) ?? say("noReply")} />
      </Tabs.Content>
    </Tabs.Root>
  );
}

function pretty(reply: string | null): string | null {
  try {
    return reply === null ? null : JSON.stringify(JSON.parse(reply), null, 2);
  } catch {
    return reply;
  }
}

function Block({ label, text }: { readonly label: string; readonly text: string }): ReactNode {
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls is reached by the keyboard
    <section aria-label={label} className="block" tabIndex={0}>
      <code>{text}</code>
    </section>
  );
}

function State({
  then,
  conversation,
}: {
  readonly then: Moment;
  readonly conversation: Conversation | null;
}): ReactNode {
  const say = useText("conversations");
  const moment = useMoment();
  const facts: readonly (readonly [string, string])[] = [
    [say("task"), then.state.task],
    [say("humanPart"), then.state.taskStatus ?? "–"],
    [say("status"), say(`status_${then.state.status}`)],
    [say("language"), then.state.language],
    [say("contact"), then.state.contactId],
    [say("at"), moment(then.at)],
  ];
  const provenance = new Map(conversation?.vars.map((each) => [each.varId, each.provenance]));
  const filled = then.state.vars.filter((each) => each.value !== null);
  return (
    <>
      <dl className="facts">
        {facts.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
      <h3>{say("values", { count: filled.length })}</h3>
      <Table
        label={say("values", { count: filled.length })}
        head={[say("variable"), say("value"), say("source")]}
        empty={say("noValues")}
        rows={filled.map((each) => {
          const from = provenance.get(each.varId);
          return {
            key: each.varId,
            cells: [
              <span key="name">
                {each.name} {each.sensitive ? <Badge tone="warn">{say("sensitive")}</Badge> : null}
              </span>,
              <span key="value" className="mono">
                {shown(each.value, 200)}
              </span>,
              <span key="from" className="quiet">
                {each.updatedBy ?? "–"}
                {from == null ? "" : ` · ${from.source}`}
                {from?.messageId == null ? "" : ` · ${say("message", { id: from.messageId })}`}
              </span>,
            ],
          };
        })}
      />
    </>
  );
}
