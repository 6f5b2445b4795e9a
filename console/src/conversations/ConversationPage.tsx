import { useQuery, useQueryClient } from "@tanstack/react-query";
import { type ReactNode, useCallback, useMemo, useRef } from "react";
import { Link, useParams, useSearchParams } from "react-router";
import { VersionLink } from "../flows/VersionField";
import { useText } from "../i18n";
import { conversationAddress } from "../shell/addresses";
import { Badge, Button, PageHead } from "../shell/kit";
import { useSession } from "../shell/Session";
import { NotYet, ScopeMissing } from "../shell/states";
import { Actions } from "./Actions";
import { type Follow, LiveDot, STATUS_TONES, useFollowed } from "./ConversationsPage";
import { Entries, type Selecting } from "./Entries";
import { MomentPanel } from "./MomentPanel";
import { conversationQuery, followJournal, journalQuery } from "./queries";
import { stepOf } from "./timeline";
import "./conversations.css";

export default function ConversationPage(): ReactNode {
  const { may } = useSession();
  const id = useParams()["*"] ?? "";
  if (!may("operator")) return <ScopeMissing scope="operator" />;
  return <OneConversation key={id} id={id} />;
}

function OneConversation({ id }: { readonly id: string }): ReactNode {
  const say = useText("conversations");
  const conversation = useQuery(conversationQuery(id));
  const journal = useQuery(journalQuery(id));
  const queries = useQueryClient();
  const follow = useCallback<Follow>(
    (live, signal) => followJournal(queries, id, live, signal),
    [queries, id],
  );
  const live = useFollowed(follow, journal.isSuccess);
  const [address, setAddress] = useSearchParams();
  const steps = useMemo(() => (journal.data ?? []).map(stepOf), [journal.data]);
  const latest = steps.at(-1)?.seq ?? 0;
  const wanted = Number(address.get("at"));
  const seq = steps.some((step) => step.seq === wanted) ? wanted : latest;
  const choose = useRef((_: number): void => undefined);
  choose.current = (next) => setAddress(next === latest ? {} : { at: String(next) }, { replace: true });
  const select = useCallback((next: number) => choose.current(next), []); // the same for every step that is drawn

  const trail = <Link to="/conversations">{say("title")}</Link>;
  if (conversation.data === undefined || journal.data === undefined) {
    return (
      <>
        <PageHead title={id} trail={trail} />
        <NotYet of={[conversation, journal]} />
      </>
    );
  }
  const known = conversation.data;
  return (
    <>
      <PageHead
        title={id}
        trail={trail}
        intro={
          <span className="row">
            <Badge tone={STATUS_TONES[known.status]}>{say(`status_${known.status}`)}</Badge>
            <VersionLink flowId={known.flowId} versionId={known.versionId} withFlow />
            {known.tag === null ? null : <Badge tone="accent">{known.tag}</Badge>}
            <span>{say(`channel_${known.channel}`)}</span>
            {known.forkedFrom === null ? null : (
              <Link to={`${conversationAddress(known.forkedFrom.conversationId)}?at=${known.forkedFrom.seq}`}>
                {say("forkOf", { id: known.forkedFrom.conversationId })}
              </Link>
            )}
            <span role="status">
              <LiveDot live={live} /> {live ? say("live") : say("notLive")}
            </span>
          </span>
        }
      >
        <Actions conversation={known} rows={journal.data} seq={seq} latest={latest} />
      </PageHead>
      <div className="conversation">
        <Entries id={id} steps={steps} seq={seq} select={select} />
        <div className="side" id="moment" tabIndex={-1}>
          <Rewind steps={steps} seq={seq} select={select} />
          <MomentPanel conversation={known} steps={steps} seq={seq} latest={latest} />
        </div>
      </div>
    </>
  );
}

function Rewind({ steps, seq, select }: Selecting): ReactNode {
  const say = useText("conversations");
  const index = steps.findIndex((step) => step.seq === seq);
  const step = steps[index];
  const go = (to: number): void => {
    const target = steps[Math.max(0, Math.min(steps.length - 1, to))];
    if (target !== undefined) select(target.seq);
  };
  const title = step === undefined ? "" : say("atEntry", { seq, of: steps.at(-1)?.seq ?? 0 });
  return (
    <section className="card rewind" aria-label={say("rewind")}>
      <div className="row apart">
        <h2>{title}</h2>
        <div className="row">
          <Button kind="bare" aria-label={say("earlier")} disabled={index <= 0} onClick={() => go(index - 1)}>
            ◀
          </Button>
          <Button
            kind="bare"
            aria-label={say("later")}
            disabled={index >= steps.length - 1}
            onClick={() => go(index + 1)}
          >
            ▶
          </Button>
          <Button disabled={index >= steps.length - 1} onClick={() => go(steps.length - 1)}>
            {say("now")}
          </Button>
        </div>
      </div>
      <input
        type="range"
        aria-label={say("entry")}
        aria-valuetext={title}
        min={0}
        max={Math.max(0, steps.length - 1)}
        value={index}
        onChange={(event) => go(Number(event.target.value))}
      />
    </section>
  );
}
