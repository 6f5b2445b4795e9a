/** What the first page asks the service, asked while the code that draws it is still under way. */
import type { Schemas } from "./client";

/** Before the service's own paths: empty, unless a proxy has it below one. */
export const ROOT = globalThis.location?.pathname.replace(/\/console(\/.*)?$/, "") ?? "";

/** Of the key in the tab's session storage. */
export const KEY_PLACE = "flow-engine.key";

const asked = new Map<string, Promise<Response>>();

/** The answer to a request that was sent early. Whoever takes it first has it; undefined for all other requests. */
export function askedEarly({ method, url }: Request): Promise<Response> | undefined {
  const { origin, pathname, search } = new URL(url);
  const path = `${pathname}${search}`;
  if (method !== "GET" || origin !== window.location.origin) return undefined;
  const answer = asked.get(path);
  asked.delete(path);
  return answer;
}

/** Asks whose the key is, and for the flows where the address shows them and the key may read them. */
export async function askEarly(): Promise<void> {
  const key = sessionStorage.getItem(KEY_PLACE);
  const send = (path: string): Promise<Response> => {
    const answer = fetch(ROOT + path, key === null ? {} : { headers: { Authorization: `Bearer ${key}` } });
    asked.set(ROOT + path, answer);
    return answer;
  };
  try {
    const answer = await send("/v1/key");
    if (!answer.ok || !/^\/console(\/|\/flows.*)?$/.test(window.location.pathname.slice(ROOT.length))) return;
    const { scopes }: Schemas["KeyReply"] = await answer.clone().json();
    if (scopes.includes("designer") || scopes.includes("agent")) await send("/v1/flows");
  } catch {
    // Whoever takes the answer is told of the same failure.
  }
}
