import { type ReactNode, useState } from "react";
import { useText } from "../i18n";
import { Button, Field } from "../shell/kit";

export interface Decision {
  readonly outcome: "approved" | "edited" | "rejected";
  readonly text?: string;
  readonly reason?: string;
}

interface Props {
  readonly id: number;
  readonly text: string;
  readonly busy: boolean;
  readonly decide: (decision: Decision) => void;
}

/** A text of the AI that a person approves, edits or rejects before the user gets it. */
export function WaitingText({ id, text, busy, decide }: Props): ReactNode {
  const say = useText("conversations");
  const [typed, setTyped] = useState({ id, text, reason: "" });
  // What was typed belongs to the text that waited then: the next one is shown as it was written.
  const now = typed.id === id ? typed : { id, text, reason: "" };
  const reason = now.reason.trim();
  return (
    <section className="card stack" aria-label={say("waitingTitle")}>
      <h2>{say("waitingTitle")}</h2>
      <Field label={say("waitingText")}>
        {(field) => (
          <textarea
            {...field}
            rows={4}
            value={now.text}
            onChange={(event) => setTyped({ ...now, text: event.target.value })}
          />
        )}
      </Field>
      <Field label={say("rejectReason")}>
        {(field) => (
          <input
            {...field}
            value={now.reason}
            onChange={(event) => setTyped({ ...now, reason: event.target.value })}
          />
        )}
      </Field>
      <div className="row">
        <Button
          kind="primary"
          disabled={busy}
          onClick={() =>
            decide(now.text === text ? { outcome: "approved" } : { outcome: "edited", text: now.text })
          }
        >
          {now.text === text ? say("approve") : say("approveEdited")}
        </Button>
        <Button
          kind="danger"
          disabled={busy}
          onClick={() => decide({ outcome: "rejected", ...(reason === "" ? {} : { reason }) })}
        >
          {say("reject")}
        </Button>
      </div>
    </section>
  );
}
