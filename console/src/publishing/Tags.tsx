import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { type ReactNode, useState } from "react";
import { client, reply, type Schemas } from "../api/client";
import { runnable, shortId } from "../flows/queries";
import { useVersionName, VersionField, VersionLink } from "../flows/VersionField";
import { useMoment, useText } from "../i18n";
import { Badge, Button, Dialog, Field, Form, NumberInput } from "../shell/kit";
import { useSession } from "../shell/Session";
import { EmptyState, ErrorState } from "../shell/states";
import { historyQuery } from "./History";
import { beforeOf, METRICS, type Metric, type Side, sharesOf, type TagReply } from "./outcomes";
import type { OfFlow } from "./parts";
import { SplitOf } from "./SplitOf";

/** The tags of a flow: where each points or how it is shared out, what came of it, and what can be done. */
export function Tags({ flow, versions: all }: OfFlow): ReactNode {
  const say = useText("publishing");
  const versions = runnable(all);
  const [creating, setCreating] = useState(false);
  return (
    <>
      <div className="row">
        <Button disabled={versions.length === 0} onClick={() => setCreating(true)}>
          {say("newTag")}
        </Button>
      </div>
      {flow.tags.length === 0 ? (
        <EmptyState title={say("noTags")}>
          <p>{say(versions.length === 0 ? "onlyDrafts" : "noTagsText")}</p>
        </EmptyState>
      ) : (
        <div className="tag-cards">
          {flow.tags.map((tag) => (
            <TagCard key={tag.tag} flow={flow} versions={versions} tag={tag} />
          ))}
        </div>
      )}
      <Dialog title={say("newTag")} open={creating} close={() => setCreating(false)}>
        <Promote flow={flow} versions={versions} tag={null} close={() => setCreating(false)} />
      </Dialog>
    </>
  );
}

function usePutTag(flowId: string) {
  const queries = useQueryClient();
  const { who } = useSession();
  return useMutation({
    mutationFn: ({ tag, ...order }: { readonly tag: string } & Omit<Schemas["PutTag"], "updatedBy">) =>
      reply(
        client.PUT("/v1/flows/{flow_id}/tags/{tag}", {
          params: { path: { flow_id: flowId, tag } },
          body: { ...order, updatedBy: who.name },
        }),
      ),
    onSuccess: () => {
      for (const key of ["flows", "flow-history", "outcomes"]) {
        void queries.invalidateQueries({ queryKey: [key] });
      }
    },
  });
}

type OfTag = OfFlow & { readonly tag: TagReply };

function TagCard({ flow, versions, tag }: OfTag): ReactNode {
  const say = useText("publishing");
  const moment = useMoment();
  const [open, setOpen] = useState<"promote" | "split" | "rollback" | null>(null);
  const close = (): void => setOpen(null);
  const history = useQuery(historyQuery(flow.id));
  const before = tag.split !== null ? tag.versionId : beforeOf(history.data?.changes ?? [], tag);
  return (
    <section className="card stack" aria-label={tag.tag}>
      <div className="row apart">
        <h2>
          <Badge tone="accent">{tag.tag}</Badge>
        </h2>
        <div className="row">
          <Button onClick={() => setOpen("promote")}>{say("promote")}</Button>
          <Button onClick={() => setOpen("split")} disabled={versions.length < 2}>
            {say("split")}
          </Button>
          <Button kind="danger" disabled={before === null} onClick={() => setOpen("rollback")}>
            {say("rollBack")}
          </Button>
        </div>
      </div>
      {tag.split === null ? (
        <strong>
          <VersionLink flowId={flow.id} versionId={tag.versionId} />
        </strong>
      ) : (
        <SplitOf flow={flow} tag={tag} />
      )}
      <p className="quiet">
        {say("movedBy", { when: moment(tag.createdAt), who: tag.createdBy })}
        {versions.length < 2 ? ` · ${say("nothingToSplit")}` : ""}
        {before === null && history.isSuccess ? ` · ${say("nothingBefore")}` : ""}
      </p>
      <Dialog title={say("promoteTag", { tag: tag.tag })} open={open === "promote"} close={close}>
        <Promote flow={flow} versions={versions} tag={tag} close={close} />
      </Dialog>
      <Dialog title={say("splitTag", { tag: tag.tag })} open={open === "split"} close={close}>
        <SplitForm flow={flow} versions={versions} tag={tag} close={close} />
      </Dialog>
      <Dialog title={say("rollBackTag", { tag: tag.tag })} open={open === "rollback"} close={close}>
        {before === null ? null : (
          <RollBack flow={flow} versions={versions} tag={tag} before={before} close={close} />
        )}
      </Dialog>
    </section>
  );
}

function Promote(props: OfFlow & { readonly tag: TagReply | null; readonly close: () => void }): ReactNode {
  const { flow, versions, tag, close } = props;
  const say = useText("publishing");
  const sayShell = useText("shell");
  const [name, setName] = useState(tag?.tag ?? "");
  const [versionId, setVersionId] = useState(versions[0]?.versionId ?? "");
  const taken = tag === null && flow.tags.some((each) => each.tag === name.trim());
  const put = usePutTag(flow.id);
  const submit = (): void => put.mutate({ tag: name.trim(), versionId }, { onSuccess: close });
  return (
    <Form submit={submit}>
      {tag === null ? (
        <Field
          label={say("tagName")}
          hint={say("tagHint")}
          {...(taken ? { error: say("tagTaken", { tag: name.trim() }) } : {})}
        >
          {(field) => (
            <input {...field} required value={name} onChange={(event) => setName(event.target.value)} />
          )}
        </Field>
      ) : (
        <p className="quiet">{say("promoteIntro")}</p>
      )}
      <VersionField versions={versions} label={say("version")} value={versionId} set={setVersionId} />
      <ErrorState error={put.error} did />
      <div className="row">
        <Button kind="primary" type="submit" disabled={put.isPending || taken}>
          {say("promote")}
        </Button>
        <Button onClick={close}>{sayShell("cancel")}</Button>
      </div>
    </Form>
  );
}

function RollBack(props: OfTag & { readonly before: string; readonly close: () => void }): ReactNode {
  const { flow, versions, tag, before, close } = props;
  const say = useText("publishing");
  const named = useVersionName();
  const version = versions.find((each) => each.versionId === before);
  const sayShell = useText("shell");
  const put = usePutTag(flow.id);
  return (
    <div className="stack">
      <p>
        {say("rollBackIntro", { tag: tag.tag, version: version === undefined ? before : named(version) })}
      </p>
      <ErrorState error={put.error} did />
      <div className="row">
        <Button
          kind="primary"
          disabled={put.isPending}
          onClick={() => put.mutate({ tag: tag.tag, versionId: before }, { onSuccess: close })}
        >
          {say("rollBackTo", { version: shortId(before) })}
        </Button>
        <Button onClick={close}>{sayShell("cancel")}</Button>
      </div>
    </div>
  );
}

function SplitForm({ flow, versions, tag, close }: OfTag & { readonly close: () => void }): ReactNode {
  const say = useText("publishing");
  const sayShell = useText("shell");
  const other = versions.find((each) => each.versionId !== tag.versionId)?.versionId ?? tag.versionId;
  const [sides, setSides] = useState<readonly Side[]>(
    tag.split ?? [
      { versionId: tag.versionId, weight: 90 },
      { versionId: other, weight: 10 },
    ],
  );
  const [guarded, setGuarded] = useState(tag.guard !== null);
  const [metric, setMetric] = useState<Metric>((tag.guard?.metric as Metric | undefined) ?? "refused");
  const [worseBy, setWorseBy] = useState(tag.guard?.worseBy ?? 0.2);
  const [minimum, setMinimum] = useState(tag.guard?.minimum ?? 40);
  const put = usePutTag(flow.id);
  const change = (index: number, part: Partial<Side>): void =>
    setSides(sides.map((side, each) => (each === index ? { ...side, ...part } : side)));
  const submit = (): void => {
    const guard = guarded ? { guard: { metric, worseBy, minimum } } : {};
    put.mutate({ tag: tag.tag, split: [...sides], ...guard }, { onSuccess: close });
  };
  const shares = sharesOf(sides);
  return (
    <Form submit={submit}>
      <p className="quiet">{say("splitIntro")}</p>
      {sides.map((side, index) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: a side is known by its place
        <div className="side-form" key={index}>
          <VersionField
            versions={versions}
            label={index === 0 ? say("base") : say("sideNumber", { number: index + 1 })}
            value={side.versionId}
            set={(versionId) => change(index, { versionId })}
          />
          <Field label={say("weight")} hint={`${Math.round(shares[index] ?? 0)} %`}>
            {(field) => (
              <NumberInput
                {...field}
                min="0"
                step="any"
                value={side.weight}
                set={(weight) => change(index, { weight })}
              />
            )}
          </Field>
        </div>
      ))}
      <div className="row">
        <Button
          disabled={sides.length >= 10 || sides.length >= versions.length}
          onClick={() =>
            setSides([
              ...sides,
              {
                versionId:
                  versions.find((each) => sides.every((side) => side.versionId !== each.versionId))
                    ?.versionId ?? "",
                weight: 10,
              },
            ])
          }
        >
          {say("addSide")}
        </Button>
        {sides.length > 2 ? (
          <Button onClick={() => setSides(sides.slice(0, -1))}>{say("removeSide")}</Button>
        ) : null}
      </div>
      <label className="choice">
        <input type="checkbox" checked={guarded} onChange={(event) => setGuarded(event.target.checked)} />
        {say("guarded")}
      </label>
      {guarded ? (
        <div className="guard-form">
          <Field label={say("metric")}>
            {(field) => (
              <select {...field} value={metric} onChange={(event) => setMetric(event.target.value as Metric)}>
                {METRICS.map((each) => (
                  <option key={each} value={each}>
                    {say(`metric_${each}`)}
                  </option>
                ))}
              </select>
            )}
          </Field>
          <Field label={say("worseBy")}>
            {(field) => <NumberInput {...field} min="0" step="any" value={worseBy} set={setWorseBy} />}
          </Field>
          <Field label={say("minimum")}>
            {(field) => <NumberInput {...field} min="1" value={minimum} set={setMinimum} />}
          </Field>
        </div>
      ) : null}
      <ErrorState error={put.error} did />
      <div className="row">
        <Button kind="primary" type="submit" disabled={put.isPending}>
          {say("split")}
        </Button>
        <Button onClick={close}>{sayShell("cancel")}</Button>
      </div>
    </Form>
  );
}
