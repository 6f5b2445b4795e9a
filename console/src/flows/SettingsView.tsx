import { type ReactNode, useEffect, useRef } from "react";
import { segmentsOf, type VersionDocument } from "./document";
import type { SchemaNode } from "./jsonSchema";
import { goTo } from "./places";
import { Properties } from "./SchemaForm";

/** What a designer changes most comes first; all else follows in the order of the schema. */
const FIRST = ["globalPrompt", "variables", "checkpoints", "channels", "mandatoryChannels", "mcpServers"];
/** Set by the service, or shown by the graph. */
const ELSEWHERE = new Set([
  "_id",
  "draft",
  "conversationalFlowId",
  "createdAt",
  "createdBy",
  "schemaVersion",
  "uiMetadata",
  "tasks",
  "firstTask",
  "globalTasks",
]);

interface Props {
  readonly document: VersionDocument;
  readonly schema: SchemaNode;
  readonly change: (document: VersionDocument, as?: string) => void;
  /** The place to go to. */
  readonly wanted: { readonly pointer: string } | null;
  readonly readOnly: boolean;
}

/** The properties that have forms here. */
export function settingsOf(schema: SchemaNode): readonly string[] {
  const known = Object.keys(schema.properties ?? {});
  return [...new Set([...FIRST, ...known])].filter((name) => known.includes(name) && !ELSEWHERE.has(name));
}

/** Forms for what belongs to the flow and to no task of it. */
export function SettingsView({ document, schema, change, wanted, readOnly }: Props): ReactNode {
  const known = schema.properties ?? {};
  const view = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (wanted !== null) goTo(view.current, segmentsOf(wanted.pointer));
  }, [wanted]);
  return (
    <div className="settings-view" ref={view}>
      <Properties
        scope={{ root: schema, document, readOnly }}
        properties={settingsOf(schema).flatMap((name) =>
          known[name] === undefined ? [] : [[name, known[name]] as const],
        )}
        of={document}
        put={(part, as) => change({ ...document, ...part }, as)}
      />
    </div>
  );
}
