import { useQuery } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { client, reply } from "../api/client";
import { shortId } from "../flows/queries";
import { VersionLink } from "../flows/VersionField";
import { useMoment, useSpeech, useText } from "../i18n";
import { Badge } from "../shell/kit";
import { ErrorState } from "../shell/states";
import { type Estimate, METRICS, type Metric, sharesOf, shownValue, spanOf, type TagReply } from "./outcomes";
import type { OfFlow } from "./parts";

/** How a tag is shared out, and what came of each side. */
export function SplitOf({ flow, tag }: { readonly flow: OfFlow["flow"]; readonly tag: TagReply }): ReactNode {
  const say = useText("publishing");
  const moment = useMoment();
  const { language } = useSpeech();
  const sides = tag.split ?? [];
  const shares = sharesOf(sides);
  const outcomes = useQuery({
    queryKey: ["outcomes", flow.id, tag.tag],
    queryFn: ({ signal }) =>
      reply(
        client.GET("/v1/flows/{flow_id}/tags/{tag}/outcomes", {
          params: { path: { flow_id: flow.id, tag: tag.tag } },
          signal,
        }),
      ),
    refetchInterval: 10_000,
  });
  const measured = outcomes.data?.versions ?? [];
  const rolledBack = outcomes.data?.rolledBack ?? tag.rolledBack;
  return (
    <div className="stack">
      {rolledBack === null ? null : (
        <p className="notice bad" role="status">
          {say("rolledBack", {
            version: shortId(rolledBack.versionId),
            metric: say(`metric_${rolledBack.metric as Metric}`),
            when: moment(rolledBack.at),
          })}
        </p>
      )}
      <ul className="shares">
        {sides.map((side, index) => (
          <li key={side.versionId}>
            <VersionLink flowId={flow.id} versionId={side.versionId} />
            <span className="bar-track" aria-hidden="true">
              <span className="bar-fill" style={{ width: `${shares[index] ?? 0}%` }} />
            </span>
            <span>{Math.round(shares[index] ?? 0)} %</span>
          </li>
        ))}
      </ul>
      {tag.guard === null ? null : (
        <p className="quiet">
          {say("guardIs", {
            metric: say(`metric_${tag.guard.metric as Metric}`),
            worseBy: shownValue(tag.guard.metric, tag.guard.worseBy, language),
            minimum: tag.guard.minimum,
          })}
        </p>
      )}
      <ErrorState error={outcomes.error} />
      {measured.length === 0 ? null : (
        // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls is reached by the keyboard
        <section className="table-frame" aria-label={say("outcomes")} tabIndex={0}>
          <table>
            <thead>
              <tr>
                <th scope="col">{say("metric")}</th>
                {measured.map((side) => (
                  <th scope="col" key={side.versionId}>
                    {shortId(side.versionId)}
                    <br />
                    {say("conversations", { count: side.conversations })}{" "}
                    {side.tooFew ? <Badge tone="warn">{say("tooFew")}</Badge> : null}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {METRICS.map((metric) => {
                const estimates = measured.map((side) => side.metrics[metric]);
                return (
                  <tr key={metric}>
                    <th scope="row">{say(`metric_${metric}`)}</th>
                    {measured.map((side) => (
                      <td key={side.versionId}>
                        <Interval metric={metric} estimate={side.metrics[metric]} all={estimates} />
                      </td>
                    ))}
                  </tr>
                );
              })}
            </tbody>
          </table>
        </section>
      )}
    </div>
  );
}

function Interval(props: {
  readonly metric: Metric;
  readonly estimate: Estimate;
  readonly all: readonly Estimate[];
}): ReactNode {
  const { metric, estimate, all } = props;
  const say = useText("publishing");
  const { language } = useSpeech();
  const span = spanOf(all, estimate);
  const shown = (value: number | null): string => shownValue(metric, value, language);
  return (
    <div className="interval">
      <strong>{shown(estimate.value)}</strong>
      {span === null ? null : (
        <>
          <span className="interval-track" aria-hidden="true">
            <span className="interval-range" style={{ left: `${span.from}%`, right: `${100 - span.to}%` }} />
            <span className="interval-dot" style={{ left: `${span.at}%` }} />
          </span>
          <small className="quiet">
            {say("between", { low: shown(estimate.low), high: shown(estimate.high) })}
          </small>
        </>
      )}
    </div>
  );
}
