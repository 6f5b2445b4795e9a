import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { type ReactNode, useMemo, useState } from "react";
import { Link, useNavigate } from "react-router";
import { client, newId, reply } from "../api/client";
import { useMoment, useText } from "../i18n";
import { flowAddress } from "../shell/addresses";
import { Badge, Button, Dialog, Field, Form, PageHead } from "../shell/kit";
import { useSession } from "../shell/Session";
import { EmptyState, ErrorState, Loading, ScopeMissing } from "../shell/states";
import { type FlowRow, flowsQuery, useLiveConversations } from "./queries";
import "./flows.css";

export default function FlowsPage(): ReactNode {
  const say = useText("flows");
  const { may } = useSession();
  const flows = useQuery({ ...flowsQuery, enabled: may("designer", "agent") });
  const [wanted, setWanted] = useState("");
  const [creating, setCreating] = useState(false);
  if (!may("designer", "agent")) return <ScopeMissing scope="designer" />;
  const create = may("designer") ? (
    <Button kind="primary" onClick={() => setCreating(true)}>
      {say("create")}
    </Button>
  ) : undefined;
  const low = wanted.trim().toLowerCase();
  const found =
    flows.data?.filter((flow) => `${flow.name}\n${flow.campaignId}`.toLowerCase().includes(low)) ?? [];
  return (
    <>
      <PageHead title={say("title")} intro={say("intro")}>
        {flows.data !== undefined && flows.data.length > 0 ? create : undefined}
      </PageHead>
      <ErrorState error={flows.error} retry={() => void flows.refetch()} />
      {flows.isPending ? <Loading /> : null}
      {flows.data?.length === 0 ? (
        <EmptyState title={say("empty")} actions={create}>
          <p>{say("emptyText")}</p>
        </EmptyState>
      ) : null}
      {flows.data !== undefined && flows.data.length > 0 ? (
        <>
          <input
            className="search"
            type="search"
            aria-label={say("search")}
            placeholder={say("search")}
            value={wanted}
            onChange={(event) => setWanted(event.target.value)}
          />
          {found.length === 0 ? (
            <p className="quiet">{say("noneFound", { text: wanted })}</p>
          ) : (
            <FlowsTable flows={found} />
          )}
        </>
      ) : null}
      <CreateFlow open={creating} close={() => setCreating(false)} />
    </>
  );
}

function FlowsTable({ flows }: { readonly flows: readonly FlowRow[] }): ReactNode {
  const say = useText("flows");
  const live = useLiveConversations();
  return (
    <div className="table-frame">
      <table>
        <thead>
          <tr>
            <th>{say("name")}</th>
            <th>{say("tags")}</th>
            <th>{say("changed")}</th>
          </tr>
        </thead>
        <tbody>
          {flows.map((flow) => (
            <Row
              key={flow.id}
              flow={flow}
              running={live?.byFlow.get(flow.id) ?? 0}
              cut={live?.cut ?? false}
            />
          ))}
        </tbody>
      </table>
    </div>
  );
}

interface RowProps {
  readonly flow: FlowRow;
  readonly running: number;
  /** There are more than were counted. */
  readonly cut: boolean;
}

function Row({ flow, running, cut }: RowProps): ReactNode {
  const say = useText("flows");
  const moment = useMoment();
  const { savedAt, savedBy, updatedAt, updatedBy } = flow;
  const saved = savedAt !== null && savedAt > updatedAt;
  return (
    <tr>
      <td>
        <Link className="flow-name" to={flowAddress(flow.id)}>
          {flow.name}
        </Link>
        <p className="quiet">{flow.campaignId}</p>
      </td>
      <td>
        <span className="row">
          {flow.tags.length === 0 ? <span className="quiet">{say("noTags")}</span> : null}
          {flow.tags.map((tag) => (
            <Badge key={tag.tag} tone="accent">
              {tag.tag}
            </Badge>
          ))}
          {flow.drafts > 0 ? <Badge tone="warn">{say("drafts", { count: flow.drafts })}</Badge> : null}
          {running > 0 ? (
            <Badge tone="good">{say(cut ? "runningOrMore" : "running", { count: running })}</Badge>
          ) : null}
        </span>
      </td>
      <td className="quiet">
        {say("changedBy", {
          when: moment(saved ? savedAt : updatedAt),
          who: (saved ? savedBy : null) ?? updatedBy,
        })}
      </td>
    </tr>
  );
}

function CreateFlow({ open, close }: { readonly open: boolean; readonly close: () => void }): ReactNode {
  const say = useText("flows");
  const sayShell = useText("shell");
  const { who } = useSession();
  const queries = useQueryClient();
  const navigate = useNavigate();
  const [name, setName] = useState("");
  const [campaignId, setCampaignId] = useState("");
  // biome-ignore lint/correctness/useExhaustiveDependencies: tried again it is the same flow until it is called otherwise
  const key = useMemo(newId, [name, campaignId]);
  const creating = useMutation({
    mutationFn: () => {
      const params = { header: { "Idempotency-Key": key } };
      const body = { name, campaignId, updatedBy: who.name };
      return reply(client.POST("/v1/flows", { params, body }));
    },
    onSuccess: () => void queries.invalidateQueries({ queryKey: ["flows"] }),
  });
  const submit = (): void =>
    creating.mutate(undefined, { onSuccess: (made) => void navigate(flowAddress(made.id)) });
  const shut = (): void => {
    creating.reset(); // another time it is another one
    close();
  };
  return (
    <Dialog title={say("create")} open={open} close={shut}>
      <Form submit={submit}>
        <Field label={say("name")}>
          {(field) => (
            <input {...field} required value={name} onChange={(event) => setName(event.target.value)} />
          )}
        </Field>
        <Field label={say("campaign")} hint={say("campaignHint")}>
          {(field) => (
            <input
              {...field}
              required
              value={campaignId}
              onChange={(event) => setCampaignId(event.target.value)}
            />
          )}
        </Field>
        <ErrorState error={creating.error} did />
        <div className="row">
          <Button kind="primary" type="submit" disabled={creating.isPending}>
            {say("create")}
          </Button>
          <Button onClick={shut}>{sayShell("cancel")}</Button>
        </div>
      </Form>
    </Dialog>
  );
}
