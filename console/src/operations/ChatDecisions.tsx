import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { type ReactNode, useState } from "react";
import { client, reply, type Schemas } from "../api/client";
import { useMoment, useSpeech, useText } from "../i18n";
import { Badge, Button, Dialog, type Tone } from "../shell/kit";
import { EmptyState, ErrorState, Loading, NotYet } from "../shell/states";
import { More, pagesOf, Table } from "../shell/Table";
import { costOf, percentOf } from "./figures";

type Decision = Schemas["ChatDecisionRow"];

const TONES: Readonly<Record<string, Tone>> = {
  accept: "good",
  continue: "good",
  clarify: "warn",
  refuse: "bad",
};

/** Which agent each message of the chat went to, and why; a session opens with what its agents did. */
export function ChatDecisions(): ReactNode {
  const say = useText("operations");
  const [opened, setOpened] = useState<string | null>(null);
  const found = useInfiniteQuery({
    ...pagesOf("chat-decisions", (before, signal) =>
      reply(client.GET("/v1/operations/chat", { params: { query: { limit: 100, ...before } }, signal })),
    ),
    refetchInterval: 10_000,
  });
  if (found.error !== null || found.isPending) return <NotYet of={[found]} />;
  const rows = found.data.pages.flatMap((page) => page.decisions);
  if (rows.length === 0) {
    return (
      <EmptyState title={say("noChat")}>
        <p>{say("noChatText")}</p>
      </EmptyState>
    );
  }
  return (
    <>
      <DecisionTable rows={rows} open={setOpened} />
      <More of={found} />
      <Dialog
        title={say("chatSession", { id: opened ?? "" })}
        open={opened !== null}
        close={() => setOpened(null)}
        wide
      >
        {opened === null ? null : <OneSession session={opened} />}
      </Dialog>
    </>
  );
}

interface DecisionTableProps {
  readonly rows: readonly Decision[];
  readonly open?: (session: string) => void;
}

function DecisionTable({ rows, open }: DecisionTableProps): ReactNode {
  const say = useText("operations");
  const moment = useMoment();
  const { language } = useSpeech();
  return (
    <Table
      label={say("decisions")}
      head={[
        say("when"),
        ...(open === undefined ? [] : [say("session")]),
        say("decision"),
        say("agent"),
        say("confidence"),
        say("decidedBy"),
        say("reason"),
      ]}
      rows={rows.map((row) => ({
        key: row.id,
        cells: [
          moment(row.at),
          ...(open === undefined
            ? []
            : [
                <Button key="open" kind="bare" onClick={() => open(row.session)}>
                  {row.session}
                </Button>,
              ]),
          <Badge key="action" tone={TONES[row.action] ?? "neutral"}>
            {row.action}
          </Badge>,
          row.agent ?? "–",
          row.confidence === null ? "–" : percentOf(row.confidence, language, 0),
          say(row.decidedBy === "model" ? "byModel" : "byScores"),
          <span key="reason" lang="en">
            {row.reason}
          </span>,
        ],
      }))}
    />
  );
}

function OneSession({ session }: { readonly session: string }): ReactNode {
  const say = useText("operations");
  const moment = useMoment();
  const { language } = useSpeech();
  const found = useQuery({
    queryKey: ["chat-session", session],
    queryFn: ({ signal }) =>
      reply(client.GET("/v1/operations/chat/{session}", { params: { path: { session } }, signal })),
  });
  if (found.error !== null) return <ErrorState error={found.error} />;
  if (found.isPending) return <Loading />;
  return (
    <div className="stack">
      <DecisionTable rows={found.data.decisions} />
      <Table
        label={say("chatRuns")}
        head={[
          say("when"),
          say("agent"),
          say("status"),
          say("answer"),
          say("tools"),
          say("tokensInOut"),
          say("cost"),
        ]}
        empty={say("noChatRuns")}
        rows={found.data.runs.map((run, index) => ({
          key: `${run.messageId} ${index}`,
          cells: [
            moment(run.at),
            run.agent,
            <Badge key="status" tone={run.status === "completed" ? "good" : "bad"}>
              {run.status}
            </Badge>,
            run.finalMessage ?? run.error ?? "–",
            run.tools.join(", ") || "–",
            `${run.inputTokens.toLocaleString(language)} / ${run.outputTokens.toLocaleString(language)}`,
            costOf(run.costUsd, language),
          ],
        }))}
      />
    </div>
  );
}
