import { useQuery } from "@tanstack/react-query";
import { Tabs } from "radix-ui";
import type { ReactNode } from "react";
import type { Schemas } from "../api/client";
import { useMoment, useText } from "../i18n";
import { Badge } from "../shell/kit";
import { useSession } from "../shell/Session";
import { NotYet } from "../shell/states";
import { Table } from "../shell/Table";
import { PathGraph } from "./PathGraph";
import { type Moment, momentQuery } from "./queries";
import { pathOf, type Step, shown, wayOf } from "./timeline";

type Conversation = Schemas["ConversationReply"];

/** What is known of a conversation as it was at an entry of its journal. */
export function MomentPanel(props: {
  readonly conversation: Conversation;
  readonly steps: readonly Step[];
  readonly seq: number;
  readonly latest: number;
}): ReactNode {
  const { conversation, steps, seq, latest } = props;
  const say = useText("conversations");
  const { may } = useSession();
  const moment = useQuery({
    ...momentQuery(conversation.conversationId, seq),
    enabled: seq > 0,
    placeholderData: (before) => before,
  });
  if (moment.error !== null || moment.data === undefined) return <NotYet of={[moment]} />;
  const then = moment.data;
  const upTo = steps.filter((step) => step.seq <= seq);
  return (
    <Tabs.Root defaultValue="state" className="card stack">
      <Tabs.List className="tabs scrolling" aria-label={say("moment")}>
        {(["state", "prompt", "path", "raw"] as const).map((each) => (
          <Tabs.Trigger key={each} className="tab" value={each}>
            {say(each)}
          </Tabs.Trigger>
        ))}
      </Tabs.List>
      <Tabs.Content value="state" className="stack">
        <State then={then} conversation={seq === latest ? conversation : null} />
      </Tabs.Content>
      <Tabs.Content value="prompt" className="stack">
        <p className="quiet">{say("promptIntro", { count: then.prompt.length })}</p>
        <Block label={say("prompt")} text={then.prompt} />
      </Tabs.Content>
      <Tabs.Content value="path" className="stack">
        {may("designer") ? (
          <PathGraph
            flowId={conversation.flowId}
            versionId={conversation.versionId}
            steps={upTo}
            current={then.state.task}
          />
        ) : null}
        <p>{wayOf(pathOf(upTo).map((each) => each.task))}</p>
      </Tabs.Content>
      <Tabs.Content value="raw" className="stack">
        <p className="quiet">{say("rawIntro")}</p>
        <Block label={say("raw")} text={pretty(then.reply) ?? say("noReply")} />
      </Tabs.Content>
    </Tabs.Root>
  );
}

function pretty(reply: string | null): string | null {
  try {
    return reply === null ? null : JSON.stringify(JSON.parse(reply), null, 2);
  } catch {
    return reply;
  }
}

function Block({ label, text }: { readonly label: string; readonly text: string }): ReactNode {
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls is reached by the keyboard
    <section aria-label={label} className="block" tabIndex={0}>
      <code>{text}</code>
    </section>
  );
}

function State({
  then,
  conversation,
}: {
  readonly then: Moment;
  readonly conversation: Conversation | null;
}): ReactNode {
  const say = useText("conversations");
  const moment = useMoment();
  const facts: readonly (readonly [string, string])[] = [
    [say("task"), then.state.task],
    [say("humanPart"), then.state.taskStatus ?? "–"],
    [say("status"), say(`status_${then.state.status}`)],
    [say("language"), then.state.language],
    [say("contact"), then.state.contactId],
    [say("at"), moment(then.at)],
  ];
  const provenance = new Map(conversation?.vars.map((each) => [each.varId, each.provenance]));
  const filled = then.state.vars.filter((each) => each.value !== null);
  return (
    <>
      <dl className="facts">
        {facts.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
      <h3>{say("values", { count: filled.length })}</h3>
      <Table
        label={say("values", { count: filled.length })}
        head={[say("variable"), say("value"), say("source")]}
        empty={say("noValues")}
        rows={filled.map((each) => {
          const from = provenance.get(each.varId);
          return {
            key: each.varId,
            cells: [
              <span key="name">
                {each.name} {each.sensitive ? <Badge tone="warn">{say("sensitive")}</Badge> : null}
              </span>,
              <span key="value" className="mono">
                {shown(each.value, 200)}
              </span>,
              <span key="from" className="quiet">
                {each.updatedBy ?? "–"}
                {from == null ? "" : ` · ${from.source}`}
                {from?.messageId == null ? "" : ` · ${say("message", { id: from.messageId })}`}
              </span>,
            ],
          };
        })}
      />
    </>
  );
}
