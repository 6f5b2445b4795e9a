import type { ReactNode } from "react";
import type { VersionDocument } from "./document";
import type { SchemaNode } from "./jsonSchema";
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
  readonly readOnly: boolean;
}

/** Forms for what belongs to the flow and to no task of it. */
export function SettingsView({ document, schema, change, readOnly }: Props): ReactNode {
  const known = schema.properties ?? {};
  const names = [...new Set([...FIRST, ...Object.keys(known)])].filter((name) => !ELSEWHERE.has(name));
  return (
    <div className="settings-view">
      <Properties
        scope={{ root: schema, document, readOnly }}
        properties={names.flatMap((name) =>
          known[name] === undefined ? [] : [[name, known[name]] as const],
        )}
        of={document}
        put={(part, as) => change({ ...document, ...part }, as)}
      />
    </div>
  );
}
