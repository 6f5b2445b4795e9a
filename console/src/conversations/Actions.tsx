import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { type ReactNode, useState } from "react";
import { Link, useNavigate } from "react-router";
import { client, reply, type Schemas } from "../api/client";
import { runnable, versionsOf, versionsQuery } from "../flows/queries";
import { VersionField } from "../flows/VersionField";
import { useText } from "../i18n";
import { conversationAddress } from "../shell/addresses";
import { Badge, Button, Dialog, Field, Form } from "../shell/kit";
import { useSession } from "../shell/Session";
import { ErrorState, Loading } from "../shell/states";
import { momentQuery } from "./queries";
import { type HumanMove, humanMoves, type JournalRow, spansOf, waitingText } from "./timeline";
import { type Decision, WaitingText } from "./WaitingText";

type Conversation = Schemas["ConversationReply"];
type HumanReport = Schemas["HandleHumanTask"];

interface Props {
  readonly conversation: Conversation;
  readonly rows: readonly JournalRow[];
  readonly seq: number;
  readonly latest: number;
}

/** What can be done with a conversation, as far as the key goes. */
export function Actions(props: Props): ReactNode {
  const say = useText("conversations");
  const { may } = useSession();
  const [open, setOpen] = useState<"fork" | "replay" | "erase" | null>(null);
  const close = (): void => setOpen(null);
  return (
    <>
      {may("agent") ? <HumanPart {...props} /> : null}
      <Button onClick={() => setOpen("fork")}>{say("fork")}</Button>
      <Button onClick={() => setOpen("replay")}>{say("replay")}</Button>
      {may("privacy") ? (
        <Button kind="danger" onClick={() => setOpen("erase")}>
          {say("erase")}
        </Button>
      ) : null}
      <Dialog title={say("fork")} open={open === "fork"} close={close}>
        <Fork {...props} close={close} />
      </Dialog>
      <Dialog title={say("replay")} open={open === "replay"} close={close} wide>
        <Replay {...props} />
      </Dialog>
      <Dialog title={say("erase")} open={open === "erase"} close={close}>
        <Erase {...props} close={close} />
      </Dialog>
    </>
  );
}

function HumanPart({ conversation, rows, latest }: Props): ReactNode {
  const say = useText("conversations");
  const queries = useQueryClient();
  const id = conversation.conversationId;
  const moment = useQuery({ ...momentQuery(id, latest), enabled: latest > 0 });
  const waiting = conversation.status === "active" ? waitingText(rows) : null;
  const report = useMutation({
    mutationFn: async (what: { readonly outcome: HumanMove } | Decision) => {
      const decided = waiting === null ? {} : { approvalId: waiting.id };
      const body = { contactId: conversation.contactId, conversationId: id, ...decided, ...what };
      const answer: object = await reply(client.POST("/v1/handle-human-task", { body: body as HumanReport }));
      if ("result" in answer && answer.result === false && "reason" in answer) {
        throw new Error(String(answer.reason)); // somebody else was faster
      }
    },
    // What is typed stays: by now it may be that of the next text.
    onSuccess: () => void queries.invalidateQueries({ queryKey: ["conversation", id] }),
  });
  const moves: readonly HumanMove[] =
    conversation.status === "active" ? humanMoves(moment.data?.state.taskStatus ?? null) : [];
  return (
    <>
      {waiting === null
        ? moves.map((outcome) => (
            <Button
              key={outcome}
              kind="primary"
              disabled={report.isPending}
              onClick={() => report.mutate({ outcome })}
            >
              {say(`human_${outcome}`)}
            </Button>
          ))
        : null}
      {waiting === null ? null : (
        <WaitingText {...waiting} busy={report.isPending} decide={(decision) => report.mutate(decision)} />
      )}
      <ErrorState error={report.error} did />
    </>
  );
}

/** The versions of a flow; nothing for keys that may not list them. */
function VersionChoice(props: {
  readonly flowId: string;
  readonly value: string;
  readonly set: (versionId: string) => void;
  readonly drafts?: boolean;
}): ReactNode {
  const say = useText("conversations");
  const { may } = useSession();
  const maySee = may("designer", "agent");
  const versions = useQuery({ ...versionsQuery(props.flowId), enabled: maySee });
  if (!maySee) return null;
  const all = versionsOf(versions.data ?? []);
  const listed = props.drafts ? all : runnable(all);
  return <VersionField label={say("version")} versions={listed} value={props.value} set={props.set} />;
}

function Fork({ conversation, seq, close }: Props & { readonly close: () => void }): ReactNode {
  const say = useText("conversations");
  const sayShell = useText("shell");
  const navigate = useNavigate();
  const [name, setName] = useState(`${conversation.conversationId}-fork-${seq}`);
  const [versionId, setVersionId] = useState(conversation.versionId);
  const fork = useMutation({
    mutationFn: () =>
      reply(
        client.POST("/v1/conversations/{conversation_id}/fork", {
          params: { path: { conversation_id: conversation.conversationId } },
          body: {
            atRevision: seq,
            conversationId: name,
            ...(versionId === conversation.versionId ? {} : { versionId }),
          },
        }),
      ),
  });
  const submit = (): void =>
    fork.mutate(undefined, {
      onSuccess: (made) => {
        close();
        void navigate(conversationAddress(made.conversationId));
      },
    });
  return (
    <Form submit={submit}>
      <p className="quiet">{say("forkIntro", { seq })}</p>
      <Field label={say("forkName")}>
        {(field) => (
          <input {...field} required value={name} onChange={(event) => setName(event.target.value)} />
        )}
      </Field>
      <VersionChoice flowId={conversation.flowId} value={versionId} set={setVersionId} />
      <ErrorState error={fork.error} did />
      <div className="row">
        <Button kind="primary" type="submit" disabled={fork.isPending}>
          {say("fork")}
        </Button>
        <Button onClick={close}>{sayShell("cancel")}</Button>
      </div>
    </Form>
  );
}

function Replay({ conversation }: Props): ReactNode {
  const say = useText("conversations");
  const [versionId, setVersionId] = useState(conversation.versionId);
  const replay = useMutation({
    mutationFn: (on: string) =>
      reply(
        client.POST("/v1/flows/{flow_id}/versions/{version_id}/replays", {
          params: { path: { flow_id: conversation.flowId, version_id: on } },
          body: { conversations: [conversation.conversationId] },
        }),
      ),
  });
  const row = replay.variables === versionId ? replay.data?.conversations[0] : undefined;
  return (
    <div className="stack">
      <p className="quiet">{say("replayIntro")}</p>
      <VersionChoice drafts flowId={conversation.flowId} value={versionId} set={setVersionId} />
      <div className="row">
        <Button kind="primary" disabled={replay.isPending} onClick={() => replay.mutate(versionId)}>
          {say("replay")}
        </Button>
      </div>
      {replay.isPending ? <Loading /> : null}
      <ErrorState error={replay.error} did />
      {row === undefined ? null : <ReplayedRow row={row} />}
    </div>
  );
}

export function ReplayedRow({ row }: { readonly row: Schemas["ReplayRow"] }): ReactNode {
  const say = useText("conversations");
  const fork = row.firstFork;
  return (
    <div className="stack" role="status">
      <p>
        <Badge tone={row.path === "same" ? "good" : "bad"}>
          {row.path === "same" ? say("samePath") : say("otherPath")}
        </Badge>
      </p>
      {fork === null ? null : (
        <div className="side-by-side">
          {([say("recorded"), say("replayed")] as const).map((title, index) => {
            const side = index === 0 ? fork.recorded : fork.replayed;
            return (
              <section key={title} className="card" aria-label={title}>
                <h3>
                  {title} · {say("entryNumber", { seq: fork.seq })}
                </h3>
                <p>
                  <strong>{side.task ?? "–"}</strong>
                </p>
                {side.code === null ? null : <p className="hint wrong">{side.code}</p>}
                <p className="quiet">{[side.taskStatus, side.status].filter(Boolean).join(" · ")}</p>
              </section>
            );
          })}
        </div>
      )}
      <ul className="pieces">
        {row.newRefusals.map((each) => (
          <li key={each.seq}>{say("newRefusal", { seq: each.seq, task: each.task, code: each.code })}</li>
        ))}
        {row.variablesGone.length === 0 ? null : (
          <li>{say("variablesGone", { names: row.variablesGone.join(", ") })}</li>
        )}
        {row.promptsDiffer.length === 0 ? null : (
          <li>{say("promptsDiffer", { entries: spansOf(row.promptsDiffer) })}</li>
        )}
        {row.checkpointsLost.length === 0 ? null : (
          <li>{say("checkpointsLost", { names: row.checkpointsLost.join(", ") })}</li>
        )}
        {row.notReplayed.length === 0 ? null : (
          <li>{say("notReplayed", { entries: spansOf(row.notReplayed) })}</li>
        )}
      </ul>
    </div>
  );
}

function Erase({ conversation, close }: Props & { readonly close: () => void }): ReactNode {
  const say = useText("conversations");
  const sayShell = useText("shell");
  const queries = useQueryClient();
  const [typed, setTyped] = useState("");
  const id = conversation.conversationId;
  const erase = useMutation({
    mutationFn: () =>
      reply(
        client.DELETE("/v1/conversations/{conversation_id}", { params: { path: { conversation_id: id } } }),
      ),
    // What is known of it is shown behind the receipt: forgotten here, it would be asked for once more.
    onSuccess: () => void queries.invalidateQueries({ queryKey: ["conversations"] }),
  });
  const forget = (): void => {
    for (const key of ["conversation", "journal", "moment"]) queries.removeQueries({ queryKey: [key, id] });
  };
  if (erase.isSuccess) {
    return (
      <div className="stack">
        <p role="status">{say("erased", { id })}</p>
        <Link className="button primary" to="/conversations" onClick={forget}>
          {say("title")}
        </Link>
      </div>
    );
  }
  return (
    <Form submit={() => erase.mutate()}>
      <p>{say("eraseIntro")}</p>
      <Field label={say("eraseType", { id })}>
        {(field) => (
          <input
            {...field}
            autoComplete="off"
            value={typed}
            onChange={(event) => setTyped(event.target.value)}
          />
        )}
      </Field>
      <ErrorState error={erase.error} did />
      <div className="row">
        <Button kind="danger" type="submit" disabled={typed !== id || erase.isPending}>
          {say("eraseForGood")}
        </Button>
        <Button onClick={close}>{sayShell("cancel")}</Button>
      </div>
    </Form>
  );
}
