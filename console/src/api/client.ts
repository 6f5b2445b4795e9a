import createClient, { type Middleware } from "openapi-fetch";
import type { components, paths } from "../../generated/api";
import { askedEarly, ROOT } from "./early";

export type Schemas = components["schemas"];
/** A problem document, as every refusal of the API is one. */
export type Problem = Schemas["Problem"];

/** The API refused: `status` and `code` say why, `problem` has every breach with its JSON pointer. */
export class Refused extends Error {
  override name = "Refused";
  constructor(
    readonly status: number,
    readonly problem: Problem,
  ) {
    super(problem.detail);
  }
  get code(): string {
    return this.problem.code;
  }
}

/** No answer came: the service is away, or the network is. */
export class ConnectionLost extends Error {
  override name = "ConnectionLost";
}

let key: string | null = null;
let expired: () => void = () => undefined;

/** The key that every request carries; null for none. */
export function sendKey(next: string | null): void {
  key = next;
}

/** A key was refused that was taken before: the session ends. */
export function keyRefused(): void {
  expired();
}

/** What happens when a key is refused that was taken before. */
export function whenKeyExpires(act: () => void): void {
  expired = act;
}

export function authorization(): Record<string, string> {
  return key === null ? {} : { Authorization: `Bearer ${key}` };
}

const withKey: Middleware = {
  onRequest({ request }) {
    if (key !== null) request.headers.set("Authorization", `Bearer ${key}`);
    return request;
  },
  onResponse({ request, response }) {
    // A late answer to the key before says nothing of the one that is sent now.
    const sent = request.headers.get("Authorization");
    if (response.status === 401 && sent === (authorization().Authorization ?? null)) expired();
  },
};

export const client = createClient<paths>({
  baseUrl: ROOT,
  fetch: (request) => askedEarly(request) ?? fetch(request),
  querySerializer: { array: { style: "form", explode: true } },
});
client.use(withKey);

interface Answer<T> {
  data?: T;
  error?: unknown;
  response: Response;
}

function isProblem(value: unknown): value is Problem {
  return typeof value === "object" && value !== null && "code" in value && "detail" in value;
}

/** The reply of a call. Throws `Refused` for a problem document, `ConnectionLost` where nothing answers. */
export async function reply<T>(call: Promise<Answer<T>>): Promise<T> {
  let answer: Answer<T>;
  try {
    answer = await call;
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ConnectionLost(String(error));
  }
  if (answer.response.ok) return answer.data as T;
  throw refusal(answer.response.status, answer.error);
}

/** The error of a reply that is none of success. */
export function refusal(status: number, body: unknown): Error {
  if (isProblem(body)) return new Refused(status, body);
  if (status >= 500) return new ConnectionLost(`HTTP ${status}`);
  const detail = typeof body === "string" && body !== "" ? body : `HTTP ${status}`;
  return new Refused(status, {
    type: "about:blank",
    title: detail,
    status,
    code: "http_error",
    detail,
    errors: [],
  });
}

/** As the server would make one; `randomUUID` is only there where the page came over TLS or from this machine. */
export function newId(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) =>
    byte.toString(16).padStart(2, "0"),
  ).join("");
}
