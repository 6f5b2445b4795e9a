import { infiniteQueryOptions, type QueryClient, queryOptions } from "@tanstack/react-query";
import { client, reply, type Schemas } from "../api/client";
import { follow } from "../api/events";
import { type Filters, type ListChange, queryOf, withChange } from "./filters";
import type { JournalRow } from "./timeline";

export type Moment = Schemas["MomentReply"];
type Page = Schemas["ConversationPage"];

const PAGE = 200;
const ENTRIES = 500;

export function conversationsQuery(filters: Filters) {
  return infiniteQueryOptions({
    queryKey: ["conversations", filters],
    queryFn: ({ pageParam, signal }) =>
      reply(
        client.GET("/v1/conversations", {
          params: {
            query: { ...queryOf(filters), limit: PAGE, ...(pageParam ? { cursor: pageParam } : {}) },
          },
          signal,
        }),
      ) as Promise<Page>,
    initialPageParam: "",
    getNextPageParam: (last: Page) => last.nextCursor,
    staleTime: 0, // what was seen before is asked for anew, then followed
    refetchOnWindowFocus: false,
  });
}

/** Keep a list as it is now until `signal` aborts. */
export function followList(
  queries: QueryClient,
  filters: Filters,
  live: (open: boolean) => void,
  signal: AbortSignal,
): Promise<void> {
  const { queryKey } = conversationsQuery(filters);
  const wanted = new URLSearchParams({ ...queryOf(filters), limit: String(PAGE) });
  let before = false;
  return follow({
    path: () => `/v1/conversations?${wanted}`,
    // It tells what there is, and not what has ended or gone since it was open before.
    live: async (open) => {
      if (open && before) await queries.invalidateQueries({ queryKey });
      before ||= open;
      live(open);
    },
    signal,
    take: ({ data }) => {
      const change = JSON.parse(data) as ListChange;
      queries.setQueryData(queryKey, (known) => {
        const [first, ...rest] = known?.pages ?? [];
        if (known === undefined || first === undefined) return known;
        const rows = withChange(first.conversations, change, rest.length > 0 ? 0 : PAGE);
        const later = rest.map((page) => ({
          ...page,
          conversations: withChange(
            page.conversations,
            {
              conversations: change.conversations.filter((row) =>
                page.conversations.some((each) => each.conversationId === row.conversationId),
              ),
              gone: [],
            },
            0,
          ),
        }));
        const known_later = new Set(
          later.flatMap((page) => page.conversations.map((row) => row.conversationId)),
        );
        const conversations = rows.filter((row) => !known_later.has(row.conversationId));
        return { ...known, pages: [{ ...first, conversations }, ...later] };
      });
    },
  });
}

export function conversationQuery(id: string) {
  return queryOptions({
    queryKey: ["conversation", id],
    queryFn: ({ signal }) =>
      reply(
        client.GET("/v1/conversations/{conversation_id}", {
          params: { path: { conversation_id: id } },
          signal,
        }),
      ),
  });
}

/** The whole journal, page by page. */
export function journalQuery(id: string) {
  return queryOptions({
    queryKey: ["journal", id],
    staleTime: Number.POSITIVE_INFINITY,
    queryFn: async ({ signal }) => {
      const rows: JournalRow[] = [];
      for (let after: number | null = 0; after !== null; ) {
        const page: Schemas["JournalPage"] = await reply(
          client.GET("/v1/conversations/{conversation_id}/journal", {
            params: { path: { conversation_id: id }, query: { after, limit: ENTRIES } },
            signal,
          }),
        );
        rows.push(...page.entries);
        after = page.next;
      }
      return rows;
    },
  });
}

/** Append to a journal what is committed from now on, until it is closed or `signal` aborts. */
export function followJournal(
  queries: QueryClient,
  id: string,
  live: (open: boolean) => void,
  signal: AbortSignal,
): Promise<void> {
  const { queryKey } = journalQuery(id);
  const path = `/v1/conversations/${encodeURIComponent(id)}/stream?after=`;
  return follow({
    path: () => path + (queries.getQueryData(queryKey)?.at(-1)?.seq ?? 0),
    live,
    signal,
    take: ({ data }) => {
      const row = JSON.parse(data) as JournalRow;
      queries.setQueryData(queryKey, (rows) =>
        rows === undefined || rows.some((each) => each.seq === row.seq) ? rows : [...rows, row],
      );
      void queries.invalidateQueries({ queryKey: ["conversation", id] });
    },
  });
}

export function momentQuery(id: string, seq: number) {
  return queryOptions({
    queryKey: ["moment", id, seq],
    staleTime: Number.POSITIVE_INFINITY,
    queryFn: ({ signal }) =>
      reply(
        client.GET("/v1/conversations/{conversation_id}/at/{seq}", {
          params: { path: { conversation_id: id, seq } },
          signal,
        }),
      ),
  });
}
