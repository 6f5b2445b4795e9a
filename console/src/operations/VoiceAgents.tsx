import { useQuery } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { client, reply, type Schemas } from "../api/client";
import { useMoment, useSpeech, useText } from "../i18n";
import { Badge, type Tone } from "../shell/kit";
import { EmptyState, NotYet } from "../shell/states";
import { Table } from "../shell/Table";
import { durationOf, totalOf } from "./figures";
import { Tile } from "./Tile";

type Agent = Schemas["VoiceAgentRow"];

const AGAIN_MS = 5_000;

const TONES: Readonly<Record<string, Tone>> = { running: "good", waiting: "warn", draining: "accent" };

/** The agents of the voice manager on the service's machine, and how their calls went. */
export function VoiceAgents(): ReactNode {
  const say = useText("operations");
  const moment = useMoment();
  const { language } = useSpeech();
  const found = useQuery({
    queryKey: ["voice"],
    queryFn: ({ signal }) => reply(client.GET("/v1/operations/voice", { signal })),
    refetchInterval: AGAIN_MS,
  });
  if (found.error !== null || found.isPending) return <NotYet of={[found]} />;
  const { missing, manager, agents, notAccepted } = found.data;
  if (missing !== null || manager === null) {
    return (
      <EmptyState title={say("noManager")}>
        <p>{say("noManagerText")}</p>
        <p lang="en">
          <code>{missing}</code>
        </p>
      </EmptyState>
    );
  }
  const sum = (of: (agent: Agent) => number): string =>
    agents.reduce((total, agent) => total + of(agent), 0).toLocaleString(language);
  return (
    <>
      <div className="tiles">
        <Tile label={say("agents")} value={agents.length.toLocaleString(language)} />
        <Tile label={say("callsNow")} value={sum((agent) => agent.figures?.callsActive ?? 0)} />
        <Tile label={say("callsEnded")} value={sum((agent) => totalOf(agent.figures?.callsEnded))} />
        <Tile label={say("bargeIns")} value={sum((agent) => agent.figures?.bargeIns ?? 0)} />
      </div>
      {manager.refreshError === null ? null : (
        <p>
          <Badge tone="warn">{say("listNotRead")}</Badge> <span lang="en">{manager.refreshError}</span>
        </p>
      )}
      <Table
        label={say("pane_voice")}
        head={[
          say("agent"),
          say("status"),
          say("callsNow"),
          say("callsEnded"),
          say("callsRefused"),
          say("turns"),
          say("bargeIns"),
          say("answerMean"),
          "p50",
          "p95",
        ]}
        empty={say("noAgents")}
        rows={agents.map((agent) => ({
          key: agent.id,
          cells: [<Name key="n" agent={agent} />, ...rest(agent)],
        }))}
      />
      <Calls agents={agents} />
      {notAccepted.map((each) => (
        <section key={each.id ?? ""} className="card stack" aria-label={say("notAccepted")}>
          <p>
            <Badge tone="bad">{say("notAccepted")}</Badge> <strong>{each.id}</strong>
          </p>
          <ul lang="en">
            {each.problems.map((problem) => (
              <li key={`${problem.pointer} ${problem.code}`}>
                {problem.message} <code className="quiet">{problem.pointer}</code>
              </li>
            ))}
          </ul>
        </section>
      ))}
      <p className="quiet">{say("voiceNote", { when: moment(manager.writtenAt) })}</p>
    </>
  );

  function rest(agent: Agent): readonly ReactNode[] {
    const { figures } = agent;
    const state = (
      <Badge key="state" tone={agent.crashLoop ? "bad" : (TONES[agent.state] ?? "neutral")}>
        {agent.crashLoop ? say("crashLoop") : agent.state}
      </Badge>
    );
    if (figures === null) return [state, say("noAnswer"), ...Array.from({ length: 7 }, () => "–")];
    const number = (value: number): string => value.toLocaleString(language);
    const ms = (value: number | null): string => (value === null ? "–" : durationOf(value, language));
    return [
      state,
      number(figures.callsActive),
      number(totalOf(figures.callsEnded)),
      number(totalOf(figures.callsRefused)),
      number(figures.turns),
      number(figures.bargeIns),
      ms(figures.meanMs),
      ms(figures.p50Ms),
      ms(figures.p95Ms),
    ];
  }
}

const CALLS_SHOWN = 100;

/** How long each turn of the caller waited for its answer, call by call, the latest first. */
function Calls({ agents }: { readonly agents: readonly Agent[] }): ReactNode {
  const say = useText("operations");
  const moment = useMoment();
  const { language } = useSpeech();
  const calls = agents
    .flatMap((agent) => agent.calls.map((call) => ({ agent, call })))
    .sort((one, other) => Date.parse(other.call.startedAt) - Date.parse(one.call.startedAt))
    .slice(0, CALLS_SHOWN);
  return (
    <section className="stack" aria-label={say("calls")}>
      <h2>{say("calls")}</h2>
      <Table
        label={say("calls")}
        head={[say("when"), say("agent"), say("length"), say("end"), say("bargeIns"), say("answerByTurn")]}
        empty={say("noVoiceCalls")}
        rows={calls.map(({ agent, call }) => ({
          key: `${agent.id} ${call.callId}`,
          cells: [
            moment(call.startedAt),
            <span key="agent" title={call.callId}>
              {agent.name}
            </span>,
            call.seconds === null ? "–" : durationOf(call.seconds * 1_000, language),
            call.reason === null ? (
              <Badge key="end" tone="good">
                {say("goesOn")}
              </Badge>
            ) : (
              <code key="end">{call.reason}</code>
            ),
            call.bargeIns.toLocaleString(language),
            call.turnsMs.length === 0
              ? "–"
              : `${call.turns > call.turnsMs.length ? "… " : ""}${call.turnsMs.map((ms) => durationOf(ms, language)).join(" · ")}`,
          ],
        }))}
      />
    </section>
  );
}

function Name({ agent }: { readonly agent: Agent }): ReactNode {
  return (
    <>
      <strong>{agent.name}</strong>
      <br />
      <span className="quiet mono">
        {agent.id} :{agent.port}
      </span>
    </>
  );
}
