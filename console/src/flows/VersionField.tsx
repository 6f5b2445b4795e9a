import { useQuery } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { Link } from "react-router";
import { useMoment, useText } from "../i18n";
import { versionAddress } from "../shell/addresses";
import { Field } from "../shell/kit";
import { useSession } from "../shell/Session";
import { flowsQuery, shortId, type Version, versionsOf, versionsQuery } from "./queries";

/** How people know a version: when it was saved and by whom, under which tags, else whether it is a draft. */
export function useVersionName(): (version: Version) => string {
  const say = useText("flows");
  const moment = useMoment();
  return ({ versionId, createdAt, createdBy, tags, draft }) => {
    const state = draft ? say("draft") : say("runnable");
    const stands = tags.length > 0 && !draft ? tags : [...tags, state];
    return [moment(createdAt), createdBy, stands.join(", "), shortId(versionId)].join(" · ");
  };
}

interface VersionLinkProps {
  readonly flowId: string;
  readonly versionId: string;
  /** The name of its flow before its own. */
  readonly withFlow?: boolean;
}

/** A version by its name, which leads to it. */
export function VersionLink({ flowId, versionId, withFlow = false }: VersionLinkProps): ReactNode {
  const { flow, version } = useNamesOf(flowId, versionId);
  const id = shortId(versionId); // at the end of its name
  return (
    <Link to={versionAddress(flowId, versionId)}>
      {withFlow ? `${flow} · ` : ""}
      {version.slice(0, -id.length)}
      <code>{id}</code>
    </Link>
  );
}

/** The names of a flow and of a version of it, of which only the ids are known; these where the key may list neither. */
export function useNamesOf(flowId: string, versionId: string): { flow: string; version: string } {
  const named = useVersionName();
  const enabled = useSession().may("designer", "agent");
  const flows = useQuery({ ...flowsQuery, enabled, staleTime: 60_000 }).data;
  const rows = useQuery({ ...versionsQuery(flowId), enabled, staleTime: 60_000, select: versionsOf }).data;
  const version = rows?.find((each) => each.versionId === versionId);
  return {
    flow: flows?.find((each) => each.id === flowId)?.name ?? shortId(flowId),
    version: version === undefined ? shortId(versionId) : named(version),
  };
}

export function VersionField(props: {
  /** The newest first. */
  readonly versions: readonly Version[];
  readonly label: string;
  readonly value: string;
  readonly set: (versionId: string) => void;
}): ReactNode {
  const { versions, label, value, set } = props;
  const named = useVersionName();
  const listed = value === "" || versions.some((each) => each.versionId === value);
  return (
    <Field label={label}>
      {(field) => (
        <select {...field} value={value} onChange={(event) => set(event.target.value)}>
          {listed ? null : <option value={value}>{shortId(value)}</option>}
          {versions.map((each) => (
            <option key={each.versionId} value={each.versionId}>
              {named(each)}
            </option>
          ))}
        </select>
      )}
    </Field>
  );
}
