/** Simulated users as the console asks for them: with a recording all runs at once, with a model one after the
 * other, so that each is seen as it ends and the next need not begin. Pure, but for `simulate`. */
import { client, reply, type Schemas } from "../api/client";
import { sendable, type VersionDocument } from "../flows/document";

export type Simulated = Schemas["SimulationReply"];
export type Run = Schemas["RunTold"];
export type Persona = Readonly<Record<string, unknown>>;
export type Channel = Schemas["SimulateBody"]["channel"];

export interface Order {
  readonly persona: Persona;
  readonly recording: string | null;
  readonly runs: number;
  readonly channel: Channel;
}

/** A new persona, with what every one has. */
export function emptyPersona(language: string | undefined): Persona {
  return { name: "", goal: "", mood: "", language: language ?? "en-US", expect: { conversation: "active" } };
}

type Body = Schemas["SimulateBody"];

export function simulate(
  flowId: string,
  document: VersionDocument,
  body: Partial<Body>,
  signal?: AbortSignal,
): Promise<Simulated> {
  const params = { path: { flow_id: flowId } };
  const sent = { ...body, document: sendable(document, false) } as Body;
  return reply(
    client.POST("/v1/flows/{flow_id}/simulations", {
      params,
      body: sent,
      ...(signal === undefined ? {} : { signal }),
    }),
  );
}

/** The requests of an order: how many runs each plays. */
export function portions(order: Order): readonly number[] {
  return order.recording === null ? Array.from({ length: order.runs }, () => 1) : [order.runs];
}

/** What came of several requests for the same persona, as of one. */
export function joined(before: Simulated | null, next: Simulated): Simulated {
  if (before === null) return next;
  const results = [
    ...before.results,
    ...next.results.map((each, index) => ({ ...each, run: before.results.length + index + 1 })),
  ];
  const passed = before.passed + next.passed;
  return {
    ...next,
    results,
    runs: results.length,
    passed,
    failed: results.length - passed,
    passK: results.length > 0 && passed === results.length ? 1 : 0,
    recordingYaml: joinedRecordings(before.recordingYaml, next.recordingYaml),
  };
}

const RUNS = "runs:\n";

/** Recordings as the service writes them, one after the other. */
function joinedRecordings(before: string | null, next: string | null): string | null {
  if (before === null || next === null) return before ?? next;
  return before + (next.startsWith(RUNS) ? next.slice(RUNS.length) : next);
}

export interface Step {
  readonly by: "user" | "agent";
  readonly text: string;
  /** What the agent did is no word of it. */
  readonly kind: "said" | "rejected" | "task" | "memory";
  readonly refused: string | null;
}

interface ActionTold {
  readonly say?: string;
  readonly change_task?: string;
  readonly decision?: { readonly outcome: string; readonly text?: string };
  readonly memory?: readonly { readonly varId: string; readonly value?: unknown }[];
  readonly refused?: string;
}

/** The conversation of a run, step by step. */
export function stepsOf(run: Run): readonly Step[] {
  return run.conversation.flatMap((turn) => {
    const { user, agent } = turn as { readonly user?: string; readonly agent?: readonly ActionTold[] };
    const own = (agent ?? []).map(agentStep);
    return user === undefined ? own : [{ by: "user", text: user, kind: "said", refused: null }, ...own];
  });
}

function agentStep(action: ActionTold): Step {
  const refused = action.refused ?? null;
  if (action.say !== undefined) {
    const { outcome, text } = action.decision ?? {};
    const kind = outcome === "rejected" ? "rejected" : "said";
    return { by: "agent", text: text ?? action.say, kind, refused };
  }
  if (action.change_task !== undefined)
    return { by: "agent", text: action.change_task, kind: "task", refused };
  const names = (action.memory ?? []).map((entry) => entry.varId).join(", ");
  return { by: "agent", text: names, kind: "memory", refused };
}

/** A file's name for what belongs to a persona. */
export function fileName(persona: Persona, end: string): string {
  const name = String(persona.name ?? "")
    .normalize("NFKD")
    .replace(/\p{Mark}/gu, "")
    .toLowerCase()
    .replace(/[^a-z0-9]+/g, "-")
    .replace(/^-+|-+$/g, "");
  return `${name === "" ? "persona" : name}${end}`;
}
