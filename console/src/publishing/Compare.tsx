import { useQuery } from "@tanstack/react-query";
import { type ReactNode, useState } from "react";
import { client, reply, type Schemas } from "../api/client";
import { useText } from "../i18n";
import { Badge, type Tone } from "../shell/kit";
import { EmptyState, ErrorState, Loading } from "../shell/states";
import { type OfFlow, VersionField } from "./parts";

type Change = Schemas["Change"];

const TONES: Readonly<Record<Change["change"], Tone>> = { added: "good", removed: "bad", changed: "warn" };

/** What a version changes of another, by ids: the order of things is no change. */
export function Compare({ flow, versions }: OfFlow): ReactNode {
  const say = useText("publishing");
  const [before, setBefore] = useState(versions[1] ?? versions[0] ?? "");
  const [after, setAfter] = useState(versions[0] ?? "");
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
  const groups = new Map<string, Change[]>();
  for (const change of changes) {
    const key = `${change.what} ${change.id}`;
    groups.set(key, [...(groups.get(key) ?? []), change]);
  }
  return (
    <>
      <div className="choices">
        <VersionField flow={flow} versions={versions} label={say("before")} value={before} set={setBefore} />
        <VersionField flow={flow} versions={versions} label={say("after")} value={after} set={setAfter} />
      </div>
      {found.error === null ? null : <ErrorState error={found.error} retry={() => void found.refetch()} />}
      {found.isPending ? <Loading /> : null}
      {found.isSuccess && changes.length === 0 ? (
        <EmptyState title={say("noChanges")}>
          <p>{say("noChangesText")}</p>
        </EmptyState>
      ) : null}
      {changes.length === 0 ? null : <p role="status">{say("changes", { count: changes.length })}</p>}
      {[...groups].map(([key, parts]) => (
        <section key={key} className="card change" aria-label={key}>
          <h3>
            {parts[0]?.what} <code>{parts[0]?.id}</code>
          </h3>
          <ul className="pieces">
            {parts.map((change) => (
              <li key={`${change.path} ${change.change}`}>
                <p className="row">
                  <Badge tone={TONES[change.change]}>{say(`change_${change.change}`)}</Badge>
                  <code>{change.path}</code>
                </p>
                <div className="before-after">
                  {change.change === "added" ? null : (
                    <pre className="raw removed">{text(change.before)}</pre>
                  )}
                  {change.change === "removed" ? null : <pre className="raw added">{text(change.after)}</pre>}
                </div>
              </li>
            ))}
          </ul>
        </section>
      ))}
    </>
  );
}

function text(value: unknown): string {
  return typeof value === "string" ? value : JSON.stringify(value, null, 2);
}
