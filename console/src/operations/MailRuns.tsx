import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { type ReactNode, useState } from "react";
import { client, reply, type Schemas } from "../api/client";
import { useMoment, useText } from "../i18n";
import { Badge, Button, Dialog } from "../shell/kit";
import { EmptyState, ErrorState, Loading, NotYet } from "../shell/states";
import { Table } from "../shell/Table";

type Run = Schemas["RunReply"];

/** The runs of mail agents; one that waits is let go on, or refused, here. */
export function MailRuns(): ReactNode {
  const say = useText("operations");
  const moment = useMoment();
  const [opened, setOpened] = useState<string | null>(null);
  const found = useQuery({
    queryKey: ["agent-runs"],
    queryFn: ({ signal }) => reply(client.GET("/v1/agent-runs", { signal })) as Promise<readonly Run[]>,
    refetchInterval: 10_000,
  });
  if (found.error !== null || found.isPending) return <NotYet of={[found]} />;
  if (found.data.length === 0) {
    return (
      <EmptyState title={say("noRuns")}>
        <p>{say("noRunsText")}</p>
      </EmptyState>
    );
  }
  return (
    <>
      <Table
        label={say("pane_mail")}
        head={[say("when"), say("mailbox"), say("route"), say("status"), say("action")]}
        rows={[...found.data].reverse().map((run) => ({
          key: String(run.id),
          cells: [
            moment(run.created_at),
            run.mailbox ?? "–",
            run.route ?? "–",
            <Badge key="status" tone={run.status === "error" ? "bad" : "neutral"}>
              {run.status}
            </Badge>,
            <Button key="open" onClick={() => setOpened(String(run.id))}>
              {say("open")}
            </Button>,
          ],
        }))}
      />
      <Dialog title={say("run")} open={opened !== null} close={() => setOpened(null)} wide>
        {opened === null ? null : <OneRun id={opened} />}
      </Dialog>
    </>
  );
}

function OneRun({ id }: { readonly id: string }): ReactNode {
  const say = useText("operations");
  const queries = useQueryClient();
  const path = { params: { path: { run_id: id } } };
  const found = useQuery({
    queryKey: ["agent-run", id],
    queryFn: ({ signal }) => reply(client.GET("/v1/agent-runs/{run_id}", { ...path, signal })),
  });
  const decide = useMutation({
    mutationFn: (approved: boolean) =>
      approved
        ? reply(client.POST("/v1/agent-runs/{run_id}/approve", path))
        : reply(client.POST("/v1/agent-runs/{run_id}/reject", path)),
    onSuccess: () => {
      void queries.invalidateQueries({ queryKey: ["agent-run", id] });
      void queries.invalidateQueries({ queryKey: ["agent-runs"] });
    },
  });
  if (found.error !== null) return <ErrorState error={found.error} />;
  if (found.isPending) return <Loading />;
  const waiting = found.data.waiting ?? [];
  return (
    <div className="stack">
      {waiting.map((call) => (
        <section key={`${call.tool} ${JSON.stringify(call.arguments)}`} className="card stack">
          <h3>{call.tool}</h3>
          <pre className="raw">{JSON.stringify(call.arguments, null, 2)}</pre>
        </section>
      ))}
      {waiting.length === 0 ? null : (
        <div className="row">
          <Button kind="primary" disabled={decide.isPending} onClick={() => decide.mutate(true)}>
            {say("approve")}
          </Button>
          <Button kind="danger" disabled={decide.isPending} onClick={() => decide.mutate(false)}>
            {say("reject")}
          </Button>
        </div>
      )}
      <ErrorState error={decide.error} did />
      <pre className="raw">{JSON.stringify(found.data, null, 2)}</pre>
    </div>
  );
}
