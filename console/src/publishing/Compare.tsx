import { useQuery } from "@tanstack/react-query";
import { type ReactNode, useState } from "react";
import { client, reply } from "../api/client";
import { VersionField } from "../flows/VersionField";
import { useText } from "../i18n";
import { EmptyState, ErrorState, Loading } from "../shell/states";
import { Changes } from "./Changes";
import type { OfFlow } from "./parts";

/** What a version changes of another, by ids: the order of things is no change. */
export function Compare({ flow, versions }: OfFlow): ReactNode {
  const say = useText("publishing");
  const [before, setBefore] = useState((versions[1] ?? versions[0])?.versionId ?? "");
  const [after, setAfter] = useState(versions[0]?.versionId ?? "");
  const found = useQuery({
    queryKey: ["diff", flow.id, before, after],
    queryFn: ({ signal }) =>
      reply(
        client.GET("/v1/flows/{flow_id}/versions/{version_id}/diff/{other_version_id}", {
          params: { path: { flow_id: flow.id, version_id: before, other_version_id: after } },
          signal,
        }),
      ),
  });
  const changes = found.data?.changes ?? [];
  return (
    <>
      <div className="choices">
        <VersionField versions={versions} label={say("before")} value={before} set={setBefore} />
        <VersionField versions={versions} label={say("after")} value={after} set={setAfter} />
      </div>
      <ErrorState error={found.error} retry={() => void found.refetch()} />
      {found.isPending ? <Loading /> : null}
      {found.isSuccess && changes.length === 0 ? (
        <EmptyState title={say("noChanges")}>
          <p>{say("noChangesText")}</p>
        </EmptyState>
      ) : null}
      {changes.length === 0 ? null : <p role="status">{say("changes", { count: changes.length })}</p>}
      <Changes changes={changes} />
    </>
  );
}
