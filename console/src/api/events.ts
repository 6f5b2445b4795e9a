/** Server-sent events by `fetch`: an `EventSource` cannot send a key. */
import { authorization, ConnectionLost, keyRefused, Refused, refusal } from "./client";
import { ROOT } from "./early";

export interface ServerEvent {
  readonly event: string;
  readonly id: string | null;
  readonly data: string;
}

/** Takes the text of a stream in any pieces and gives the events that are whole; comments are left out. */
export class EventReader {
  private rest = "";

  take(text: string): ServerEvent[] {
    const blocks = (this.rest + text).replaceAll("\r\n", "\n").split("\n\n");
    this.rest = blocks.pop() ?? "";
    return blocks.flatMap((block) => eventOf(block) ?? []);
  }
}

function eventOf(block: string): ServerEvent | null {
  let event = "message";
  let id: string | null = null;
  const data: string[] = [];
  for (const line of block.split("\n")) {
    const [, name, value] = /^(\w+):? ?(.*)$/.exec(line) ?? [];
    if (name === "event") event = value ?? "";
    if (name === "id") id = value ?? "";
    if (name === "data") data.push(value ?? "");
  }
  return data.length === 0 ? null : { event, id, data: data.join("\n") };
}

export interface Following {
  readonly path: () => string;
  readonly take: (event: ServerEvent) => void;
  /** Whether the stream is open now; it is opened again after a while where it is not. What it tells is taken after. */
  readonly live: (open: boolean) => void | Promise<void>;
  readonly signal: AbortSignal;
}

const AGAIN_AFTER_MS = [500, 1000, 2000, 5000];

/** Follow a stream until it says `end` with a reason that is final, or `signal` aborts. `path` is asked each
 * time it is opened, so that it can begin behind what was taken. Throws what is refused for good. */
export async function follow({ path, take, live, signal }: Following): Promise<void> {
  let failures = 0;
  while (!signal.aborted) {
    try {
      const headers = { ...authorization(), Accept: "text/event-stream" };
      const response = await fetch(ROOT + path(), { headers, signal });
      if (response.status === 204) return;
      if (response.status === 401) keyRefused();
      if (!response.ok) throw refusal(response.status, await response.json().catch(() => null));
      await live(true);
      failures = 0;
      if (await ended(response, take)) return;
    } catch (error) {
      if (signal.aborted) return;
      const away = error instanceof Refused && error.status >= 500;
      if (!(away || error instanceof ConnectionLost || error instanceof TypeError)) throw error;
    } finally {
      void live(false);
    }
    const pause = AGAIN_AFTER_MS[Math.min(failures++, AGAIN_AFTER_MS.length - 1)];
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

/** Whether the stream said that nothing follows. */
async function ended(response: Response, take: (event: ServerEvent) => void): Promise<boolean> {
  const reader = new EventReader();
  const body = response.body?.pipeThrough(new TextDecoderStream()).getReader();
  if (body === undefined) return false;
  for (;;) {
    const { value, done } = await body.read();
    if (done) return false;
    for (const event of reader.take(value)) {
      if (event.event !== "end") take(event);
      else return (JSON.parse(event.data) as { reason: string }).reason !== "stopping";
    }
  }
}
