import { type ReactNode, useState } from "react";
import { humanMoves } from "../conversations/timeline";
import { WaitingText } from "../conversations/WaitingText";
import { useText } from "../i18n";
import { Button, Form } from "../shell/kit";
import type { Try, Turn } from "./tries";

interface Props {
  readonly now: Try;
  readonly send: (turn: Turn, sent?: () => void) => void;
  readonly busy: boolean;
}

/** What a person does in a try: answers a transfer, takes over, decides on what the AI wants to say. */
export function HumanPart({ now, send, busy }: Props): ReactNode {
  const say = useText("conversations");
  const waiting = now.approval?.status === "waiting" ? now.approval : null;
  const moves = humanMoves(now.task.status);
  if (waiting !== null) {
    return (
      <WaitingText
        id={waiting.approvalId}
        text={waiting.text}
        busy={busy}
        decide={(humanTask) => send({ humanTask })}
      />
    );
  }
  if (moves.length === 0) return null;
  return (
    <>
      {now.approvalRequired && !now.hasModel && now.task.status !== "human" ? (
        <Written send={send} busy={busy} />
      ) : null}
      <div className="row talk-moves">
        {moves.map((outcome) => (
          <Button key={outcome} disabled={busy} onClick={() => send({ humanTask: { outcome } })}>
            {say(`human_${outcome}`)}
          </Button>
        ))}
      </div>
    </>
  );
}

/** Without a model the text that is to wait is the designer's. */
function Written({ send, busy }: Omit<Props, "now">): ReactNode {
  const say = useText("talk");
  return (
    <TextForm
      label={say("written")}
      action={say("putBefore")}
      busy={busy}
      send={(text, sent) => send({ humanTask: { outcome: "waiting", text } }, sent)}
    />
  );
}

interface TextFormProps {
  readonly label: string;
  readonly action: string;
  readonly kind?: "primary";
  readonly busy: boolean;
  /** `sent` is called once the text has arrived. */
  readonly send: (text: string, sent: () => void) => void;
  readonly children?: ReactNode;
}

/** One text, which stays until it has arrived. */
export function TextForm({ label, action, kind, busy, send, children }: TextFormProps): ReactNode {
  const [text, setText] = useState("");
  const submit = (): void => {
    if (text.trim() !== "" && !busy) send(text.trim(), () => setText(""));
  };
  return (
    <Form className="talk-form" submit={submit}>
      <input
        aria-label={label}
        placeholder={label}
        autoComplete="off"
        readOnly={busy}
        value={text}
        onChange={(event) => setText(event.target.value)}
      />
      <Button type="submit" disabled={busy} {...(kind === undefined ? {} : { kind })}>
        {action}
      </Button>
      {children}
    </Form>
  );
}
