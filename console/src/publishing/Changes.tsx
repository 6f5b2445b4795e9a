import type { ReactNode } from "react";
import type { Schemas } from "../api/client";
import { useText } from "../i18n";
import { Badge, type Tone } from "../shell/kit";
import "./publishing.css";

type Change = Schemas["Change"];

const TONES: Readonly<Record<Change["change"], Tone>> = { added: "good", removed: "bad", changed: "warn" };

/** What one document changes of another, thing by thing, with both sides. */
export function Changes({ changes }: { readonly changes: readonly Change[] }): ReactNode {
  const say = useText("publishing");
  const groups = new Map<string, Change[]>();
  for (const change of changes) {
    const key = `${change.what} ${change.id}`;
    groups.set(key, [...(groups.get(key) ?? []), change]);
  }
  return [...groups].map(([key, parts]) => (
    <section key={key} className="card change" aria-label={key}>
      <h2>
        {parts[0]?.what} <code>{parts[0]?.id}</code>
      </h2>
      <ul className="pieces">
        {parts.map((change) => (
          <li key={`${change.path} ${change.change}`}>
            <p className="row">
              <Badge tone={TONES[change.change]}>{say(`change_${change.change}`)}</Badge>
              <code>{change.path}</code>
            </p>
            <div className="before-after">
              {change.change === "added" ? null : <pre className="raw removed">{textOf(change.before)}</pre>}
              {change.change === "removed" ? null : <pre className="raw added">{textOf(change.after)}</pre>}
            </div>
          </li>
        ))}
      </ul>
    </section>
  ));
}

/** A value of a document as it is read: a text as it is, anything else as JSON. */
export function textOf(value: unknown): string {
  return typeof value === "string" ? value : JSON.stringify(value, null, 2);
}
