import { client, reply, type Schemas, sendKey } from "./client";
import { KEY_PLACE } from "./early";

export type Scope = Schemas["KeyReply"]["scopes"][number];
export type Who = Schemas["KeyReply"];

/** Who the key is of; without a key whoever is on this machine, if the service runs without keys. */
export function who(): Promise<Who> {
  return reply(client.GET("/v1/key"));
}

/** Take a key for all requests from now on. `kept`: this browser tab has it after a reload too. */
export function takeKey(key: string, kept: boolean): void {
  sendKey(key);
  if (kept) sessionStorage.setItem(KEY_PLACE, key);
  else sessionStorage.removeItem(KEY_PLACE);
}

export function forgetKey(): void {
  sendKey(null);
  sessionStorage.removeItem(KEY_PLACE);
}

/** The key that this tab kept, if it did. */
export function restoreKey(): void {
  sendKey(sessionStorage.getItem(KEY_PLACE));
}
