import { queryOptions, useQuery } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { Link } from "react-router";
import { client, reply, type Schemas } from "../api/client";
import { shortId } from "../flows/queries";
import { useMoment, useText } from "../i18n";
import { versionAddress } from "../shell/addresses";
import { Badge, type Tone } from "../shell/kit";
import { NotYet } from "../shell/states";
import type { OfFlow } from "./parts";

type Change = Schemas["FlowChangeReply"];

export function historyQuery(flowId: string) {
  return queryOptions({
    queryKey: ["flow-history", flowId],
    queryFn: ({ signal }) =>
      reply(client.GET("/v1/flows/{flow_id}/history", { params: { path: { flow_id: flowId } }, signal })),
  });
}

const TONES: Readonly<Record<string, Tone>> = {
  version_saved: "neutral",
  tag_moved: "accent",
  tag_split: "warn",
  rolled_back: "bad",
};

/** Who did what when with this flow. */
export function History({ flow }: OfFlow): ReactNode {
  const say = useText("publishing");
  const moment = useMoment();
  const found = useQuery(historyQuery(flow.id));
  if (found.error !== null || found.isPending) return <NotYet of={[found]} />;
  return (
    <>
      <ol className="history">
        {found.data.changes.map((change) => (
          <li key={`${change.at} ${change.action} ${change.tag} ${change.versionId}`}>
            <span className="quiet">{moment(change.at)}</span>
            <span>
              <Badge tone={TONES[change.action] ?? "neutral"}>
                {say(`action_${change.action as "version_saved"}`)}
              </Badge>{" "}
              <What flowId={flow.id} change={change} />
            </span>
            <span className="quiet">{change.action === "rolled_back" ? say("byGuard") : change.by}</span>
          </li>
        ))}
      </ol>
      {found.data.cut ? <p className="quiet">{say("historyCut")}</p> : null}
    </>
  );
}

function What({ flowId, change }: { readonly flowId: string; readonly change: Change }): ReactNode {
  const say = useText("publishing");
  const to = (
    <Link to={versionAddress(flowId, change.versionId ?? "")}>
      <code>{shortId(change.versionId ?? "")}</code>
    </Link>
  );
  const from = change.fromVersionId === null ? null : shortId(change.fromVersionId);
  switch (change.action) {
    case "version_saved":
      return (
        <>
          {to} {change.draft ? say("aDraft") : ""}{" "}
          {from === null ? null : <span className="quiet">{say("madeFrom", { version: from })}</span>}
        </>
      );
    case "tag_split":
      return (
        <>
          {change.tag}:{" "}
          {(change.split ?? []).map((side) => `${shortId(side.versionId)} × ${side.weight}`).join(", ")}
        </>
      );
    case "flow_named":
      return null;
    default:
      return (
        <>
          {change.tag}: {from === null ? "" : `${from} → `}
          {to} {change.metric === null ? "" : `(${change.metric})`}
        </>
      );
  }
}
