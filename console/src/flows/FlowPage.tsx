import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { Link, useNavigate, useParams } from "react-router";
import { client, reply } from "../api/client";
import { useMoment, useSpeech, useText } from "../i18n";
import { flowAddress, versionAddress } from "../shell/addresses";
import { Badge, Button, PageHead } from "../shell/kit";
import { useSession } from "../shell/Session";
import { EmptyState, ErrorState, Loading, ScopeMissing } from "../shell/states";
import { Table } from "../shell/Table";
import type { VersionDocument } from "./document";
import {
  flowsQuery,
  type LiveConversations,
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
  const [newest] = found;
  return (
    <>
      <PageHead
        title={flow?.name ?? flowId}
        trail={<Link to="/flows">{say("title")}</Link>}
        intro={flow?.campaignId}
      >
        {may("designer") && newest !== undefined ? (
          <>
            <Link className="button" to={`${flowAddress(flowId)}/publishing`}>
              {say("publishing")}
            </Link>
            <Link className="button primary" to={versionAddress(flowId, newest.versionId)}>
              {say("openNewest")}
            </Link>
          </>
        ) : undefined}
      </PageHead>
      <ErrorState error={versions.error} retry={() => void versions.refetch()} />
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
    onSuccess: () => void queries.invalidateQueries({ queryKey: ["flows"] }),
  });
  const open = ({ versionId }: { readonly versionId: string }): void =>
    void navigate(versionAddress(flowId, versionId));
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
      <ErrorState error={beginning.error} did />
    </>
  );
}

/** Saves the first version of a flow. */
function saved(flowId: string, document: VersionDocument) {
  const params = { path: { flow_id: flowId } };
  return reply(client.POST("/v1/flows/{flow_id}/versions", { params, body: document }));
}

interface LiveProps {
  readonly flowId: string;
  readonly versionId: string;
  readonly live: LiveConversations;
}

/** How many conversations are on a version, which leads whoever may see them there. */
function Live({ flowId, versionId, live }: LiveProps): ReactNode {
  const { may } = useSession();
  const { language } = useSpeech();
  const count = live.byVersion.get(versionId) ?? 0;
  if (live.cut && count === 0) return "–"; // maybe among those that were not counted
  const shown = `${count.toLocaleString(language)}${live.cut ? "+" : ""}`;
  const filters = new URLSearchParams({ flowId, versionId });
  return count > 0 && may("operator") ? <Link to={`/conversations?${filters}`}>{shown}</Link> : shown;
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
    <Table
      label={say("version")}
      head={[
        say("version"),
        say("tags"),
        ...(live === null ? [] : [say("live")]),
        say("savedAt"),
        say("madeFrom"),
      ]}
      rows={versions.map((version) => ({
        key: version.versionId,
        cells: [
          <Link key="id" className="flow-name mono" to={versionAddress(flowId, version.versionId)}>
            {shortId(version.versionId)}
          </Link>,
          <span key="tags" className="row">
            {version.draft ? <Badge tone="warn">{say("draft")}</Badge> : null}
            {version.tags.map((tag) => (
              <Badge key={tag} tone="accent">
                {tag}
              </Badge>
            ))}
          </span>,
          ...(live === null
            ? []
            : [<Live key="live" flowId={flowId} versionId={version.versionId} live={live} />]),
          <span key="saved" className="quiet">
            {say("changedBy", { when: moment(version.createdAt), who: version.createdBy })}
          </span>,
          <span key="from" className="quiet mono">
            {version.parentVersionId === null ? "–" : shortId(version.parentVersionId)}
          </span>,
        ],
      }))}
    />
  );
}
