import type { ReactNode } from "react";
import { useMoment, useText } from "../i18n";
import { Field } from "../shell/kit";
import { shortId, type Version } from "./queries";

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
