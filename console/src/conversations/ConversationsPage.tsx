import { useInfiniteQuery, useQuery, useQueryClient } from "@tanstack/react-query";
import { useVirtualizer } from "@tanstack/react-virtual";
import { type ReactNode, useCallback, useContext, useEffect, useMemo, useRef, useState } from "react";
import { Link, useSearchParams } from "react-router";
import { Refused } from "../api/client";
import { flowsQuery, runnable, versionsOf, versionsQuery } from "../flows/queries";
import { useNamesOf, useVersionName } from "../flows/VersionField";
import { useMoment, useText } from "../i18n";
import { conversationAddress } from "../shell/addresses";
import { Badge, Button, Covered, Field, PageHead, type Tone } from "../shell/kit";
import { useSession } from "../shell/Session";
import { EmptyState, ErrorState, Loading, ScopeMissing } from "../shell/states";
import { CHANNELS, type ConversationRow, type Filters, filtersOf, STATUSES } from "./filters";
import { conversationsQuery, followList } from "./queries";
import "./conversations.css";

const ROW_PX = 60;
const TYPED_FOR_MS = 300;

export default function ConversationsPage(): ReactNode {
  const say = useText("conversations");
  const { may } = useSession();
  if (!may("operator")) return <ScopeMissing scope="operator" />;
  return (
    <>
      <PageHead title={say("title")} intro={say("intro")} />
      <Conversations />
    </>
  );
}

function Conversations(): ReactNode {
  const say = useText("conversations");
  const queries = useQueryClient();
  const [address, setAddress] = useSearchParams();
  const key = address.toString();
  const filters = useMemo(() => filtersOf(new URLSearchParams(key)), [key]);
  const found = useInfiniteQuery(conversationsQuery(filters));
  const follow = useCallback<Follow>(
    (live, signal) => followList(queries, filters, live, signal),
    [queries, filters],
  );
  const live = useFollowed(follow, found.data !== undefined && found.isFetchedAfterMount);
  // A live change clears the error of a query, and what was refused is not asked for again with each of them.
  const failed = found.failureReason instanceof Refused ? found.failureReason : found.error;
  const rows = useMemo(() => found.data?.pages.flatMap((page) => page.conversations) ?? [], [found.data]);
  const cut = found.data?.pages.at(-1)?.cut === true && !found.hasNextPage;
  const filtered = Object.keys(filters).length > 0;
  return (
    <>
      <FilterBar filters={filters} set={(next) => setAddress(next, { replace: true })} />
      {failed === null ? null : (
        <ErrorState
          error={failed}
          retry={() => void (rows.length > 0 ? found.fetchNextPage() : found.refetch())}
        />
      )}
      {found.isPending ? <Loading /> : null}
      {found.isSuccess && rows.length === 0 ? (
        filtered ? (
          <EmptyState
            title={say("noneFound")}
            actions={<Button onClick={() => setAddress({}, { replace: true })}>{say("clearFilters")}</Button>}
          />
        ) : (
          <EmptyState title={say("empty")}>
            <p>{say("emptyText")}</p>
          </EmptyState>
        )
      ) : null}
      {rows.length > 0 ? (
        <>
          <p className="list-note quiet" role="status">
            <LiveDot live={live} /> {live ? say("live") : say("notLive")} ·{" "}
            {say(found.hasNextPage ? "loadedMore" : "loaded", { count: rows.length })}
            {cut ? ` · ${say("cut")}` : ""}
          </p>
          <Rows
            rows={rows}
            more={() => {
              if (found.hasNextPage && !found.isFetching && failed === null) void found.fetchNextPage();
            }}
          />
        </>
      ) : null}
    </>
  );
}

export type Follow = (live: (open: boolean) => void, signal: AbortSignal) => Promise<void>;

/** Follows a stream while the page is shown: whether it is open now. */
export function useFollowed(follow: Follow, ready: boolean): boolean {
  const [live, setLive] = useState(false);
  const covered = useContext(Covered); // a stream that a key has ended begins again with the next one
  useEffect(() => {
    if (!ready || covered) return;
    const stop = new AbortController();
    follow(setLive, stop.signal).catch(() => setLive(false));
    return () => stop.abort();
  }, [follow, ready, covered]);
  return live;
}

export function LiveDot({ live }: { readonly live: boolean }): ReactNode {
  return <span className={live ? "dot live" : "dot"} aria-hidden="true" />;
}

function FilterBar({
  filters,
  set,
}: {
  readonly filters: Filters;
  readonly set: (next: Record<string, string>) => void;
}): ReactNode {
  const say = useText("conversations");
  const { may } = useSession();
  const enabled = may("designer", "agent");
  const flows = useQuery({ ...flowsQuery, enabled });
  const { flowId = "" } = filters;
  const versions = useQuery({
    ...versionsQuery(flowId),
    enabled: enabled && flowId !== "",
    select: versionsOf,
  });
  const named = useVersionName();
  const put = (name: keyof Filters, value: string): void => {
    const next: Record<string, string> = { ...filters, [name]: value };
    if (value === "") delete next[name];
    if (name === "flowId") delete next.versionId;
    set(next);
  };
  const choice = (name: keyof Filters, label: string, options: readonly (readonly [string, string])[]) => (
    <Field label={label}>
      {(field) => (
        <select {...field} value={filters[name] ?? ""} onChange={(event) => put(name, event.target.value)}>
          <option value="">{say("any")}</option>
          {options.map(([value, text]) => (
            <option key={value} value={value}>
              {text}
            </option>
          ))}
        </select>
      )}
    </Field>
  );
  return (
    <search className="filters" aria-label={say("filters")}>
      <Typed label={say("search")} value={filters.q ?? ""} set={(value) => put("q", value)} />
      {flows.data === undefined
        ? null
        : choice(
            "flowId",
            say("flow"),
            flows.data.map((flow) => [flow.id, flow.name] as const),
          )}
      {versions.data === undefined
        ? null
        : choice(
            "versionId",
            say("version"),
            runnable(versions.data).map((each) => [each.versionId, named(each)] as const),
          )}
      {choice(
        "status",
        say("status"),
        STATUSES.map((each) => [each, say(`status_${each}`)] as const),
      )}
      {choice(
        "channel",
        say("channel"),
        CHANNELS.map((each) => [each, say(`channel_${each}`)] as const),
      )}
      <Typed label={say("task")} value={filters.task ?? ""} set={(value) => put("task", value)} />
      <Typed label={say("tag")} value={filters.tag ?? ""} set={(value) => put("tag", value)} />
      {(["from", "to"] as const).map((name) => (
        <Field key={name} label={say(name)}>
          {(field) => (
            <input
              {...field}
              type="date"
              value={filters[name] ?? ""}
              onChange={(event) => put(name, event.target.value)}
            />
          )}
        </Field>
      ))}
    </search>
  );
}

/** A text that is taken over when nothing more is typed for a moment. */
function Typed(props: {
  readonly label: string;
  readonly value: string;
  readonly set: (value: string) => void;
}): ReactNode {
  const { label, value, set } = props;
  const [text, setText] = useState(value);
  const latest = useRef(set);
  latest.current = set;
  const own = useRef(value); // what was taken over from here: meanwhile more may have been typed
  useEffect(() => {
    if (value === own.current) return;
    own.current = value;
    setText(value);
  }, [value]);
  useEffect(() => {
    if (text.trim() === value) return;
    const timer = setTimeout(() => {
      own.current = text.trim();
      latest.current(own.current);
    }, TYPED_FOR_MS);
    return () => clearTimeout(timer);
  }, [text, value]);
  return (
    <Field label={label}>
      {(field) => <input {...field} value={text} onChange={(event) => setText(event.target.value)} />}
    </Field>
  );
}

export const STATUS_TONES: Readonly<Record<ConversationRow["status"], Tone>> = {
  active: "good",
  between_contacts: "warn",
  closed: "neutral",
};

function Rows({
  rows,
  more,
}: {
  readonly rows: readonly ConversationRow[];
  readonly more: () => void;
}): ReactNode {
  const say = useText("conversations");
  const frame = useRef<HTMLElement>(null);
  const virtual = useVirtualizer({
    count: rows.length,
    getScrollElement: () => frame.current,
    estimateSize: () => ROW_PX,
    overscan: 12,
  });
  const shown = virtual.getVirtualItems();
  const last = shown.at(-1)?.index ?? 0;
  useEffect(() => {
    if (last >= rows.length - 40) more();
  }, [last, rows.length, more]);
  return (
    <section className="conversation-list" ref={frame} aria-label={say("title")} tabIndex={-1}>
      <ul style={{ height: virtual.getTotalSize() }}>
        {shown.map(({ index, start }) => {
          const row = rows[index];
          return row === undefined ? null : (
            <li
              key={row.conversationId}
              style={{ transform: `translateY(${start}px)` }}
              aria-setsize={rows.length}
              aria-posinset={index + 1}
            >
              <Row row={row} />
            </li>
          );
        })}
      </ul>
    </section>
  );
}

function Row({ row }: { readonly row: ConversationRow }): ReactNode {
  const say = useText("conversations");
  const moment = useMoment();
  const { flow, version } = useNamesOf(row.flowId, row.versionId);
  return (
    <Link className="conversation-row" to={conversationAddress(row.conversationId)}>
      <span className="who">
        <strong>{row.conversationId}</strong>
        <small className="quiet">
          {flow} · {row.tag === null ? "" : `${row.tag} · `}
          {version}
          {row.forkedFrom === null ? "" : ` · ${say("forkOf", { id: row.forkedFrom.conversationId })}`}
        </small>
      </span>
      <span className="in-task">{row.task}</span>
      <span>
        <Badge tone={STATUS_TONES[row.status]}>{say(`status_${row.status}`)}</Badge>
      </span>
      <span className="quiet wide-only">{say(`channel_${row.channel}`)}</span>
      <span className="quiet when">{moment(row.updatedAt ?? row.startedAt)}</span>
    </Link>
  );
}
