import type { ReactNode } from "react";
import type { FlowRow } from "../flows/queries";
import { Field } from "../shell/kit";

export interface OfFlow {
  readonly flow: FlowRow;
  /** Ids, the newest first. */
  readonly versions: readonly string[];
}

/** The tags that point to a version, as a version is named in lists. */
export function namedVersion(flow: FlowRow, versionId: string): string {
  const tags = flow.tags.filter((tag) => tag.versionId === versionId).map((tag) => tag.tag);
  return tags.length === 0 ? versionId : `${versionId} (${tags.join(", ")})`;
}

export function VersionField(
  props: OfFlow & {
    readonly label: string;
    readonly value: string;
    readonly set: (versionId: string) => void;
  },
): ReactNode {
  return (
    <Field label={props.label}>
      {(field) => (
        <select {...field} value={props.value} onChange={(event) => props.set(event.target.value)}>
          {props.versions.map((id) => (
            <option key={id} value={id}>
              {namedVersion(props.flow, id)}
            </option>
          ))}
        </select>
      )}
    </Field>
  );
}
