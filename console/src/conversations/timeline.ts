import type { Schemas } from "../api/client";

export type JournalRow = Schemas["JournalRow"];

/** What a commit of the journal was, as a person reads it. */
export type Kind =
  | "started"
  | "said"
  | "entered"
  | "refused"
  | "values"
  | "human"
  | "ended"
  | "forked"
  | "moved"
  | "other";

export interface Value {
  readonly id: string;
  readonly value: unknown;
  readonly by: string | null;
}

export interface Step {
  readonly seq: number;
  readonly at: string;
  /** Of this browser's time zone. */
  readonly day: string;
  readonly by: string;
  readonly op: string;
  readonly kind: Kind;
  /** The task that the conversation was in afterwards. */
  readonly task: string | null;
  /** The task that was asked for, a message's text, a human outcome. */
  readonly subject: string | null;
  readonly speaker: string | null;
  readonly code: string | null;
  readonly rationale: string | null;
  readonly values: readonly Value[];
}

function textOf(value: unknown): string | null {
  return typeof value === "string" && value !== "" ? value : null;
}

function objectOf(value: unknown): Readonly<Record<string, unknown>> {
  return typeof value === "object" && value !== null && !Array.isArray(value)
    ? (value as Record<string, unknown>)
    : {};
}

/** The values that a commit wrote, whoever did, by the ids of their variables. */
export function valuesOf(delta: Readonly<Record<string, unknown>>): Value[] {
  return ["tools", "mined"].flatMap((side) =>
    Object.entries(objectOf(delta[side])).map(([id, entry]) => {
      const { value, updatedBy } = objectOf(entry);
      return { id, value, by: textOf(updatedBy) };
    }),
  );
}

const KINDS: Readonly<Record<string, Kind>> = {
  "handle-new-contact": "started",
  "handle-utterance": "said",
  "change-task": "entered",
  "handle-end-contact": "ended",
  "handle-human-task": "human",
  memory: "values",
  extraction: "values",
  advance: "entered",
  fork: "forked",
  migration: "moved",
};

const STEPS = new WeakMap<JournalRow, Step>();

/** The same for the same row: what follows a live journal draws what is new alone. */
export function stepOf(row: JournalRow): Step {
  const step = STEPS.get(row) ?? read(row);
  STEPS.set(row, step);
  return step;
}

function read(row: JournalRow): Step {
  const { op, ...input } = row.input as Readonly<Record<string, unknown>>;
  const name = textOf(op) ?? "";
  const refused = row.outcome.result === false;
  return {
    seq: row.seq,
    at: row.at,
    day: new Date(row.at).toDateString(),
    by: row.by,
    op: name,
    kind: refused ? "refused" : (KINDS[name] ?? "other"),
    task: textOf(row.outcome.task),
    subject: textOf(input.task) ?? textOf(input.body) ?? textOf(input.outcome) ?? textOf(input.channel),
    speaker: textOf(input.src),
    code: textOf(row.outcome.code),
    rationale: row.rationale,
    values: valuesOf(row.delta),
  };
}

/** The tasks in the order in which they were entered, each with the commit that did. */
export function pathOf(steps: readonly Step[]): { task: string; seq: number }[] {
  const path: { task: string; seq: number }[] = [];
  for (const { task, seq } of steps) {
    if (task !== null && path.at(-1)?.task !== task) path.push({ task, seq });
  }
  return path;
}

/** A way through tasks in one line; of a long one its end. */
export function wayOf(tasks: readonly string[], most = 30): string {
  return [...(tasks.length > most ? ["…"] : []), ...tasks.slice(-most)].join(" → ");
}

/** A value in one line, as far as it fits. */
export function shown(value: unknown, most = 120): string {
  if (value === null || value === undefined) return "–";
  const { number } = objectOf(value); // of a phone
  const text =
    typeof value === "string" ? value : typeof number === "string" ? number : JSON.stringify(value);
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

/** Numbers in their order as they are read: `1–3, 7`. Of many the first ones. */
export function spansOf(numbers: readonly number[], most = 12): string {
  const spans: [number, number][] = [];
  for (const number of numbers) {
    const last = spans.at(-1);
    if (last?.[1] === number - 1) last[1] = number;
    else spans.push([number, number]);
  }
  const told = spans.slice(0, most).map(([from, to]) => (from === to ? `${from}` : `${from}–${to}`));
  return [...told, ...(spans.length > most ? ["…"] : [])].join(", ");
}

export type HumanOutcome = Schemas["HandleHumanTask"]["outcome"];
export type HumanMove = "taken_over" | "released" | "connected" | "completed" | "failed";

/** What a person can report now, by the status of the human part: of a transfer, or of a supervision. */
export function humanMoves(taskStatus: string | null): HumanMove[] {
  switch (taskStatus) {
    case "routing":
      return ["connected", "failed"];
    case "connected":
      return ["completed"];
    case "ai":
    case "approved":
    case "edited":
    case "rejected":
    case "timeout":
      return ["taken_over"];
    case "human":
      return ["released"];
    default:
      return [];
  }
}

export interface Waiting {
  readonly id: number;
  readonly text: string;
}

/** The text of the AI that waits for a person's decision; null where none does. */
export function waitingText(rows: readonly JournalRow[]): Waiting | null {
  let waiting: Waiting | null = null;
  for (const row of rows) {
    const session = objectOf(row.delta.session);
    if (!("approval" in session)) continue;
    const approval = objectOf(session.approval);
    const text = textOf(approval.text);
    if (approval.status === "waiting" && text !== null) waiting = { id: Number(approval.id), text };
    else if (session.approval === null || approval.status !== undefined) waiting = null;
  }
  return waiting;
}
