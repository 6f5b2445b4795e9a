import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { Link, useNavigate, useParams } from "react-router";
import { client, reply } from "../api/client";
import { useMoment, useSpeech, useText } from "../i18n";
import { Badge, Button, PageHead } from "../shell/kit";
import { useSession } from "../shell/Session";
import { EmptyState, ErrorState, Loading, ScopeMissing } from "../shell/states";
import type { VersionDocument } from "./document";
import {
  flowsQuery,
  shortId,
  useLiveConversations,
  type Version,
  versionsOf,
  versionsQuery,
} from "./queries";
import { starter } from "./starter";
import "./flows.css";

/** A flow's versions, newest first. */
export default function FlowPage(): ReactNode {
  const say = useText("flows");
  const { flowId = "" } = useParams();
  const { may } = useSession();
  const enabled = may("designer", "agent");
  const versions = useQuery({ ...versionsQuery(flowId), enabled });
  const flow = useQuery({ ...flowsQuery, enabled }).data?.find((each) => each.id === flowId);
  if (!enabled) return <ScopeMissing scope="designer" />;
  const found = versionsOf(versions.data ?? []);
  return (
    <>
      <PageHead
        title={flow?.name ?? flowId}
        trail={<Link to="/flows">{say("title")}</Link>}
        intro={flow?.campaignId}
      >
        {may("designer") && found.length > 0 ? (
          <Link className="button" to={`/flows/${encodeURIComponent(flowId)}/publishing`}>
            {say("publishing")}
          </Link>
        ) : undefined}
      </PageHead>
      {versions.error !== null ? (
        <ErrorState error={versions.error} retry={() => void versions.refetch()} />
      ) : null}
      {versions.isPending ? <Loading /> : null}
      {versions.data?.length === 0 ? <FirstVersion flowId={flowId} /> : null}
      {found.length > 0 ? <VersionsTable flowId={flowId} versions={found} /> : null}
    </>
  );
}

function FirstVersion({ flowId }: { readonly flowId: string }): ReactNode {
  const say = useText("flows");
  const { language } = useSpeech();
  const { may } = useSession();
  const navigate = useNavigate();
  const queries = useQueryClient();
  const beginning = useMutation({
    mutationFn: () => saved(flowId, starter(say, language)),
    onSuccess: () => void queries.invalidateQueries({ queryKey: ["flows", flowId] }),
  });
  const open = ({ versionId }: { readonly versionId: string }): void =>
    void navigate(`/flows/${encodeURIComponent(flowId)}/versions/${encodeURIComponent(versionId)}`);
  const begin = (
    <Button
      kind="primary"
      disabled={beginning.isPending}
      onClick={() => beginning.mutate(undefined, { onSuccess: open })}
    >
      {say("begin")}
    </Button>
  );
  return (
    <>
      <EmptyState title={say("noVersions")} {...(may("designer") ? { actions: begin } : {})}>
        <p>{say("noVersionsText")}</p>
      </EmptyState>
      {beginning.error === null ? null : <ErrorState error={beginning.error} did />}
    </>
  );
}

/** Saves the first version of a flow. */
function saved(flowId: string, document: VersionDocument) {
  const params = { path: { flow_id: flowId } };
  return reply(client.POST("/v1/flows/{flow_id}/versions", { params, body: document }));
}

function VersionsTable({
  flowId,
  versions,
}: {
  readonly flowId: string;
  readonly versions: readonly Version[];
}): ReactNode {
  const say = useText("flows");
  const moment = useMoment();
  const live = useLiveConversations();
  return (
    <div className="table-frame">
      <table>
        <thead>
          <tr>
            <th>{say("version")}</th>
            <th>{say("tags")}</th>
            {live === null ? null : <th>{say("live")}</th>}
            <th>{say("savedAt")}</th>
            <th>{say("madeFrom")}</th>
          </tr>
        </thead>
        <tbody>
          {versions.map((version) => (
            <tr key={version.versionId}>
              <td>
                <Link
                  className="flow-name mono"
                  to={`/flows/${encodeURIComponent(flowId)}/versions/${encodeURIComponent(version.versionId)}`}
                >
                  {shortId(version.versionId)}
                </Link>
              </td>
              <td>
                <span className="row">
                  {version.draft ? <Badge tone="warn">{say("draft")}</Badge> : null}
                  {version.tags.map((tag) => (
                    <Badge key={tag} tone="accent">
                      {tag}
                    </Badge>
                  ))}
                </span>
              </td>
              {live === null ? null : (
                <td>
                  {live.byVersion.get(version.versionId) ?? 0}
                  {live.cut ? "+" : ""}
                </td>
              )}
              <td className="quiet">
                {say("changedBy", { when: moment(version.createdAt), who: version.createdBy })}
              </td>
              <td className="quiet mono">
                {version.parentVersionId === null ? "–" : shortId(version.parentVersionId)}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
