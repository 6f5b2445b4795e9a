import type { Schemas } from "../api/client";

export type ConversationRow = Schemas["ConversationRow"];

export const STATUSES = ["active", "between_contacts", "closed"] as const;
export const CHANNELS = ["phone", "chat", "whatsapp", "sms", "mail"] as const;

export interface Filters {
  readonly q?: string;
  readonly flowId?: string;
  readonly versionId?: string;
  readonly tag?: string;
  readonly task?: string;
  readonly status?: (typeof STATUSES)[number];
  readonly channel?: (typeof CHANNELS)[number];
  readonly from?: string;
  readonly to?: string;
}

const TEXTS = ["q", "flowId", "versionId", "tag", "task"] as const;

/** The filters that an address holds; what is none of a choice is left out. */
export function filtersOf(address: URLSearchParams): Filters {
  const found: Record<string, string> = {};
  for (const name of TEXTS) {
    const text = address.get(name)?.trim();
    if (text) found[name] = text;
  }
  const choices = { status: STATUSES, channel: CHANNELS } as const;
  for (const [name, accepted] of Object.entries(choices)) {
    const chosen = address.get(name);
    if (accepted.some((each) => each === chosen)) found[name] = chosen ?? "";
  }
  for (const name of ["from", "to"]) {
    const day = address.get(name);
    if (day !== null && /^\d{4}-\d\d-\d\d$/.test(day) && !Number.isNaN(Date.parse(day))) found[name] = day;
  }
  return found;
}

/** As the API takes them: days of this browser's time zone as moments, the last one whole. */
export function queryOf(filters: Filters): Filters {
  const { from, to, ...rest } = filters;
  return {
    ...rest,
    ...(from === undefined ? {} : { from: new Date(`${from}T00:00:00`).toISOString() }),
    ...(to === undefined ? {} : { to: new Date(`${to}T23:59:59.999`).toISOString() }),
  };
}

export interface ListChange {
  readonly conversations: readonly ConversationRow[];
  readonly gone: readonly string[];
}

/** Rows with a live change in them: changed ones in their place, new ones by their start, the newest first. What
 * is gone from the newest stays while it is further down, unless `total` says that all rows are among the newest. */
export function withChange(
  rows: readonly ConversationRow[],
  change: ListChange,
  window: number,
): ConversationRow[] {
  const changed = new Map(change.conversations.map((row) => [row.conversationId, row]));
  const inWindow = new Set(rows.slice(0, window).map((row) => row.conversationId));
  const gone = new Set(change.gone.filter((id) => inWindow.has(id) && rows.length <= window));
  const kept = rows
    .filter((row) => !gone.has(row.conversationId))
    .map((row) => {
      const next = changed.get(row.conversationId);
      changed.delete(row.conversationId);
      return next ?? row;
    });
  const fresh = [...changed.values()];
  if (fresh.length === 0) return kept;
  return [...fresh, ...kept].sort((one, other) => (one.startedAt < other.startedAt ? 1 : -1));
}
