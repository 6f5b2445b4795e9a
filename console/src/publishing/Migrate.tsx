import { useMutation } from "@tanstack/react-query";
import { type ReactNode, useState } from "react";
import { Link } from "react-router";
import { client, reply } from "../api/client";
import { runnable } from "../flows/queries";
import { VersionField } from "../flows/VersionField";
import { useText } from "../i18n";
import { conversationAddress } from "../shell/addresses";
import { Badge, Button, Field, Form, type Tone } from "../shell/kit";
import { EmptyState, ErrorState, Loading } from "../shell/states";
import { Table } from "../shell/Table";
import { mappingOf } from "./mapping";
import type { OfFlow } from "./parts";

const TONES: Readonly<Record<string, Tone>> = { keep: "good", map: "accent", cannot: "bad" };

/** Live conversations are moved to another version, after a dry run that says what would become of each. */
export function Migrate({ flow, versions: all }: OfFlow): ReactNode {
  const say = useText("publishing");
  const versions = runnable(all);
  const [from, setFrom] = useState((versions[1] ?? versions[0])?.versionId ?? "");
  const [to, setTo] = useState(versions[0]?.versionId ?? "");
  const [written, setWritten] = useState("");
  const mapping = mappingOf(written);
  const migrate = useMutation({
    mutationFn: ({ dryRun, pairs }: { readonly dryRun: boolean; readonly pairs: Record<string, string> }) =>
      reply(
        client.POST("/v1/flows/{flow_id}/migrations", {
          params: { path: { flow_id: flow.id }, query: { dryRun } },
          body: { fromVersionId: from, toVersionId: to, mapping: pairs, limit: 1000 },
        }),
      ),
  });
  const report = migrate.data;
  const asTried =
    report?.dryRun === true &&
    report.fromVersionId === from &&
    report.toVersionId === to &&
    JSON.stringify(migrate.variables?.pairs) === JSON.stringify(mapping.pairs) &&
    !migrate.isPending;
  const movable = (report?.counts.keep ?? 0) + (report?.counts.map ?? 0);
  if (versions.length < 2) return <EmptyState title={say("nothingToMigrateTo")} />;
  return (
    <>
      <Form submit={() => migrate.mutate({ dryRun: true, pairs: mapping.pairs })}>
        <div className="choices">
          <VersionField versions={versions} label={say("migrateFrom")} value={from} set={setFrom} />
          <VersionField versions={versions} label={say("migrateTo")} value={to} set={setTo} />
        </div>
        <Field
          label={say("mapping")}
          hint={say("mappingHint")}
          {...(mapping.wrong.length === 0
            ? {}
            : { error: say("mappingWrong", { lines: mapping.wrong.join(", ") }) })}
        >
          {(field) => (
            <textarea
              {...field}
              rows={3}
              value={written}
              onChange={(event) => setWritten(event.target.value)}
            />
          )}
        </Field>
        <div className="row">
          <Button
            kind="primary"
            type="submit"
            disabled={migrate.isPending || from === to || mapping.wrong.length > 0}
          >
            {say("dryRun")}
          </Button>
          {report?.dryRun === true && movable > 0 ? (
            <Button
              kind="danger"
              disabled={!asTried || mapping.wrong.length > 0}
              onClick={() => migrate.mutate({ dryRun: false, pairs: mapping.pairs })}
            >
              {say("migrateNow", { count: movable })}
            </Button>
          ) : null}
        </div>
      </Form>
      {migrate.isPending ? <Loading /> : null}
      <ErrorState error={migrate.error} did />
      {report === undefined ? null : report.conversations.length === 0 ? (
        <EmptyState title={say("nothingToMigrate")} />
      ) : (
        <>
          <p role="status">
            {report.dryRun
              ? say("wouldMove", { count: movable })
              : say("moved", { count: report.counts.migrated ?? 0 })}
            {report.more ? ` ${say("moreToMigrate")}` : ""}
          </p>
          <Table
            label={say("pane_migrate")}
            head={[say("conversation"), say("verdict"), say("migrateFrom"), say("migrateTo"), say("reason")]}
            rows={report.conversations.map((row) => ({
              key: row.conversationId,
              cells: [
                <Link key="id" to={conversationAddress(row.conversationId)}>
                  {row.conversationId}
                </Link>,
                <Badge key="verdict" tone={TONES[row.verdict] ?? "neutral"}>
                  {say(`verdict_${row.verdict as "keep" | "map" | "cannot"}`)}
                </Badge>,
                row.fromTask ?? "–",
                row.toTask ?? "–",
                row.reason ?? "–",
              ],
            }))}
          />
        </>
      )}
    </>
  );
}
