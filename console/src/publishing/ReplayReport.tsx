import { useMutation } from "@tanstack/react-query";
import { type ReactNode, useState } from "react";
import { Link } from "react-router";
import { client, reply, type Schemas } from "../api/client";
import { ReplayedRow } from "../conversations/Actions";
import { VersionField } from "../flows/VersionField";
import { useText } from "../i18n";
import { conversationAddress } from "../shell/addresses";
import { Badge, Button, Field, Form, NumberInput } from "../shell/kit";
import { EmptyState, ErrorState, Loading } from "../shell/states";
import "../conversations/conversations.css";
import type { OfFlow } from "./parts";

const FIGURES = [
  ["samePath", false],
  ["otherPath", true],
  ["newRefusals", true],
  ["variablesGone", true],
  ["promptsDiffer", false],
] as const;

/** How much comes out otherwise: another path first, then whatever else differs. */
function differing(row: Schemas["ReplayRow"]): number {
  const { newRefusals, variablesGone, checkpointsLost, promptsDiffer, notReplayed } = row;
  const lost = newRefusals.length + variablesGone.length + checkpointsLost.length;
  return row.path === "same" ? 2 * Math.sign(lost) + Math.sign(promptsDiffer.length + notReplayed.length) : 4;
}

/** What a version, a draft too, would have made of the last conversations of a tag. */
export function ReplayReport({ flow, versions }: OfFlow): ReactNode {
  const say = useText("publishing");
  const [versionId, setVersionId] = useState(versions[0]?.versionId ?? "");
  const [tag, setTag] = useState(flow.tags[0]?.tag ?? "");
  const [last, setLast] = useState(100);
  const replay = useMutation({
    mutationFn: () =>
      reply(
        client.POST("/v1/flows/{flow_id}/versions/{version_id}/replays", {
          params: { path: { flow_id: flow.id, version_id: versionId } },
          body: { from: tag, last },
        }),
      ),
  });
  const report = replay.data;
  return (
    <>
      <Form className="choices" submit={() => replay.mutate()}>
        <VersionField versions={versions} label={say("replayOn")} value={versionId} set={setVersionId} />
        <Field label={say("replayFrom")}>
          {(field) => (
            <select {...field} value={tag} onChange={(event) => setTag(event.target.value)}>
              {flow.tags.map((each) => (
                <option key={each.tag}>{each.tag}</option>
              ))}
            </select>
          )}
        </Field>
        <Field label={say("replayLast")}>
          {(field) => <NumberInput {...field} min="1" max="500" value={last} set={setLast} />}
        </Field>
        <Button kind="primary" type="submit" disabled={replay.isPending || tag === ""}>
          {say("replayNow")}
        </Button>
      </Form>
      {replay.isPending ? <Loading /> : null}
      <ErrorState error={replay.error} did />
      {report === undefined ? null : report.conversations.length === 0 ? (
        <EmptyState title={say("nothingToReplay")} />
      ) : (
        <>
          <div className="numbers" role="status">
            {FIGURES.map(([name, wrong]) => (
              <div key={name} className={wrong && report.summary[name] > 0 ? "number bad" : "number"}>
                <strong>{report.summary[name]}</strong>
                <span className="quiet">{say(`figure_${name}`)}</span>
              </div>
            ))}
          </div>
          {report.conversations
            .toSorted((one, other) => differing(other) - differing(one))
            .map((row) => (
              <details key={row.conversationId} className="card">
                <summary>
                  {row.conversationId}{" "}
                  <Badge tone={row.path === "same" ? "good" : "bad"}>
                    {row.path === "same" ? say("figure_samePath") : say("figure_otherPath")}
                  </Badge>
                </summary>
                <p>
                  <Link className="button" to={conversationAddress(row.conversationId)}>
                    {say("open")}
                  </Link>
                </p>
                <ReplayedRow row={row} />
              </details>
            ))}
        </>
      )}
    </>
  );
}
