import { useInfiniteQuery, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Tabs } from "radix-ui";
import type { ReactNode } from "react";
import { Link, useSearchParams } from "react-router";
import { client, reply } from "../api/client";
import { SECONDS, useMoment, useSpeech, useText } from "../i18n";
import { conversationAddress } from "../shell/addresses";
import { Badge, Button, chosenInSight, PageHead, type Tone } from "../shell/kit";
import { useSession } from "../shell/Session";
import { EmptyState, ErrorState, Loading, NotYet, ScopeMissing } from "../shell/states";
import { More, pagesOf, Table } from "../shell/Table";
import { ChatDecisions } from "./ChatDecisions";
import { costOf, durationOf } from "./figures";
import { MailRuns } from "./MailRuns";
import { Tile } from "./Tile";
import { VoiceAgents } from "./VoiceAgents";
import "./operations.css";

const AGAIN_MS = 5_000;
const LIMIT = 200;

const PANES = {
  health: Health,
  jobs: Jobs,
  dead: DeadLetters,
  events: Events,
  calls: ModelCalls,
  latency: Latency,
  voice: VoiceAgents,
  chat: ChatDecisions,
  mail: MailRuns,
} as const;
type Pane = keyof typeof PANES;

export default function OperationsPage(): ReactNode {
  const say = useText("operations");
  const { may } = useSession();
  const [address, setAddress] = useSearchParams();
  if (!may("operator")) return <ScopeMissing scope="operator" />;
  const panes = (Object.keys(PANES) as Pane[]).filter((pane) => pane !== "mail" || may("agent"));
  const chosen = panes.find((pane) => pane === address.get("show")) ?? "health";
  return (
    <>
      <PageHead title={say("title")} intro={say("intro")} />
      <Tabs.Root
        value={chosen}
        onValueChange={(pane) => setAddress(pane === "health" ? {} : { show: pane }, { replace: true })}
        className="stack"
      >
        <Tabs.List className="tabs scrolling" aria-label={say("title")}>
          {panes.map((pane) => (
            <Tabs.Trigger key={pane} ref={chosenInSight} className="tab" value={pane}>
              {say(`pane_${pane}`)}
            </Tabs.Trigger>
          ))}
        </Tabs.List>
        {panes.map((pane) => {
          const Content = PANES[pane];
          return (
            <Tabs.Content key={pane} value={pane} className="stack">
              <Content />
            </Tabs.Content>
          );
        })}
      </Tabs.Root>
    </>
  );
}

const TONES: Readonly<Record<string, Tone>> = {
  ok: "good",
  working: "good",
  unavailable: "bad",
  silent: "bad",
  due: "warn",
  held: "accent",
  failed: "bad",
  cancelled: "warn",
};

function Health(): ReactNode {
  const say = useText("operations");
  const moment = useMoment();
  const { language } = useSpeech();
  const found = useQuery({
    queryKey: ["operations"],
    queryFn: ({ signal }) => reply(client.GET("/v1/operations", { signal })),
    refetchInterval: AGAIN_MS,
  });
  const data = found.data;
  return (
    <>
      <ErrorState error={found.error} retry={() => void found.refetch()} />
      {found.isPending ? <Loading /> : null}
      {data === undefined ? null : (
        <>
          <div className="tiles">
            {data.stores.map((store) => (
              <section key={store.name} className="tile" aria-label={store.name}>
                <span className="quiet">{store.name === "memory" ? say("memory") : say("flows")}</span>
                <Badge tone={TONES[store.status] ?? "neutral"}>
                  {store.status === "ok" ? say("ok") : say("unavailable")}
                </Badge>
                {store.detail === null ? null : <p className="hint wrong">{store.detail}</p>}
              </section>
            ))}
            {data.backlog === null ? null : (
              <>
                <Tile label={say("dueJobs")} value={data.backlog.due.toLocaleString(language)} />
                <Tile
                  label={say("oldest")}
                  value={durationOf(data.backlog.oldestS * 1000, language)}
                  wrong={data.backlog.oldestS > 30}
                />
                <Tile
                  label={say("deadLetters")}
                  value={data.backlog.deadLetters.toLocaleString(language)}
                  wrong={data.backlog.deadLetters > 0}
                />
              </>
            )}
          </div>
          <h2>{say("processes")}</h2>
          <Table
            label={say("processes")}
            head={[say("process"), say("kind"), say("release"), say("since"), say("lastSeen"), say("status")]}
            empty={say("noProcesses")}
            rows={data.processes.map((each) => ({
              key: each.name,
              cells: [
                <span key="name" className="mono">
                  {each.name}
                </span>,
                each.kind,
                each.release,
                moment(each.startedAt),
                moment(each.seenAt),
                <Badge key="status" tone={TONES[each.status] ?? "neutral"}>
                  {each.status === "working" ? say("working") : say("silent")}
                </Badge>,
              ],
            }))}
          />
        </>
      )}
    </>
  );
}

function ConversationLink({ id }: { readonly id: string }): ReactNode {
  return id === "" ? "–" : <Link to={conversationAddress(id)}>{id}</Link>;
}

function Jobs(): ReactNode {
  const say = useText("operations");
  const moment = useMoment();
  const found = useQuery({
    queryKey: ["jobs"],
    queryFn: ({ signal }) => reply(client.GET("/v1/jobs", { params: { query: { limit: LIMIT } }, signal })),
    refetchInterval: AGAIN_MS,
  });
  if (found.error !== null || found.isPending) return <NotYet of={[found]} />;
  if (found.data.jobs.length === 0) return <EmptyState title={say("noJobs")} />;
  return (
    <>
      <Table
        label={say("pane_jobs")}
        head={[say("job"), say("conversation"), say("dueAt"), say("status")]}
        rows={found.data.jobs.map((job) => ({
          key: `${job.kind} ${job.conversationId} ${job.subject}`,
          cells: [
            job.kind,
            <ConversationLink key="id" id={job.conversationId} />,
            moment(job.dueAt),
            <Badge key="status" tone={TONES[job.status] ?? "neutral"}>
              {job.status === "due" ? say("due") : job.status === "held" ? say("held") : say("waiting")}
            </Badge>,
          ],
        }))}
      />
      {found.data.cut ? <p className="quiet">{say("cut")}</p> : null}
    </>
  );
}

function DeadLetters(): ReactNode {
  const say = useText("operations");
  const moment = useMoment();
  const queries = useQueryClient();
  const found = useQuery({
    queryKey: ["dead-letters"],
    queryFn: ({ signal }) =>
      reply(client.GET("/v1/dead-letters", { params: { query: { limit: LIMIT } }, signal })),
    refetchInterval: AGAIN_MS,
  });
  const replay = useMutation({
    mutationFn: (id: string) =>
      reply(client.POST("/v1/dead-letters/{letter_id}/replay", { params: { path: { letter_id: id } } })),
    onSettled: () => {
      for (const key of ["dead-letters", "jobs", "operations"]) {
        void queries.invalidateQueries({ queryKey: [key] });
      }
    },
  });
  if (found.error !== null || found.isPending) return <NotYet of={[found]} />;
  return (
    <>
      <p role="status" className={replay.isSuccess ? "" : "visually-hidden"}>
        {replay.isSuccess ? say("replayed") : ""}
      </p>
      <ErrorState error={replay.error} did />
      {found.data.deadLetters.length === 0 ? (
        <EmptyState title={say("noLetters")}>
          <p>{say("noLettersText")}</p>
        </EmptyState>
      ) : (
        <Table
          label={say("pane_dead")}
          head={[
            say("job"),
            say("conversation"),
            say("reason"),
            say("attempts"),
            say("buriedAt"),
            say("action"),
          ]}
          rows={found.data.deadLetters.map((letter) => ({
            key: letter.id,
            cells: [
              letter.kind,
              <ConversationLink key="id" id={letter.conversationId} />,
              letter.reason,
              letter.attempts,
              moment(letter.buriedAt),
              <Button
                key="replay"
                aria-label={say("replayOf", { kind: letter.kind, id: letter.conversationId })}
                disabled={replay.isPending}
                onClick={() => replay.mutate(letter.id)}
              >
                {say("replay")}
              </Button>,
            ],
          }))}
        />
      )}
    </>
  );
}

function Events(): ReactNode {
  const say = useText("operations");
  const moment = useMoment(SECONDS);
  const found = useInfiniteQuery(
    pagesOf("events", (before, signal) =>
      reply(client.GET("/v1/events", { params: { query: { limit: 50, ...before } }, signal })),
    ),
  );
  if (found.error !== null || found.isPending) return <NotYet of={[found]} />;
  const rows = found.data.pages.flatMap((page) => page.events);
  return (
    <>
      <div className="row">
        <Button onClick={() => void found.refetch()}>{say("refresh")}</Button>
      </div>
      {rows.length === 0 ? (
        <EmptyState title={say("noEvents")} />
      ) : (
        <Table
          label={say("pane_events")}
          head={[say("when"), say("kind"), say("conversation"), say("event")]}
          rows={rows.map((row) => ({
            key: row.id,
            cells: [
              moment(row.at),
              <Badge key="kind">{row.kind}</Badge>,
              <ConversationLink key="id" id={row.conversationId} />,
              <details key="event">
                <summary>{say("showEvent")}</summary>
                <pre className="raw">{JSON.stringify(row.event, null, 2)}</pre>
              </details>,
            ],
          }))}
        />
      )}
      <More of={found} />
    </>
  );
}

function ModelCalls(): ReactNode {
  const say = useText("operations");
  const moment = useMoment(SECONDS);
  const { language } = useSpeech();
  const found = useInfiniteQuery(
    pagesOf("model-calls", (before, signal) =>
      reply(client.GET("/v1/model-calls", { params: { query: { limit: LIMIT, ...before } }, signal })),
    ),
  );
  if (found.error !== null || found.isPending) return <NotYet of={[found]} />;
  const rows = found.data.pages.flatMap((page) => page.calls);
  if (rows.length === 0) {
    return (
      <EmptyState title={say("noCalls")}>
        <p>{say("noCallsText")}</p>
      </EmptyState>
    );
  }
  const cost = rows.reduce((sum, row) => sum + (row.costUsd ?? 0), 0);
  const tokens = rows.reduce((sum, row) => sum + row.inputTokens + row.outputTokens, 0);
  return (
    <>
      <div className="tiles">
        <Tile label={say("callsShown")} value={rows.length.toLocaleString(language)} />
        <Tile label={say("tokens")} value={tokens.toLocaleString(language)} />
        <Tile label={say("cost")} value={costOf(cost, language)} />
      </div>
      <Table
        label={say("pane_calls")}
        head={[
          say("when"),
          say("purpose"),
          say("model"),
          say("status"),
          say("tokensInOut"),
          say("duration"),
          say("cost"),
        ]}
        rows={rows.map((row) => ({
          key: row.id,
          cells: [
            moment(row.at),
            row.purpose,
            <span key="model" className="mono">
              {row.model}
            </span>,
            <Badge key="status" tone={TONES[row.status] ?? "good"}>
              {row.reason ?? row.status}
            </Badge>,
            `${row.inputTokens.toLocaleString(language)} / ${row.outputTokens.toLocaleString(language)}`,
            durationOf(row.durationMs, language),
            costOf(row.costUsd, language),
          ],
        }))}
      />
      <More of={found} />
    </>
  );
}

function Latency(): ReactNode {
  const say = useText("operations");
  const { language } = useSpeech();
  const found = useQuery({
    queryKey: ["latency"],
    queryFn: ({ signal }) => reply(client.GET("/v1/operations/latency", { signal })),
    refetchInterval: AGAIN_MS,
  });
  if (found.error !== null || found.isPending) return <NotYet of={[found]} />;
  const ms = (value: number | null): string => (value === null ? "–" : durationOf(value, language));
  return (
    <Table
      label={say("pane_latency")}
      head={[say("route"), say("requests"), say("errors"), say("mean"), "p50", "p95", "p99"]}
      rows={found.data.routes.map((row) => ({
        key: `${row.method} ${row.route}`,
        cells: [
          <span key="route" className="mono">
            {row.method} {row.route}
          </span>,
          row.requests.toLocaleString(language),
          row.errors === 0 ? (
            "0"
          ) : (
            <Badge key="errors" tone="bad">
              {row.errors.toLocaleString(language)}
            </Badge>
          ),
          ms(row.meanMs),
          ms(row.p50Ms),
          ms(row.p95Ms),
          ms(row.p99Ms),
        ],
      }))}
    />
  );
}
