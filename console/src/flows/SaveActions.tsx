import { useMutation, useQueryClient } from "@tanstack/react-query";
import { lazy, type ReactNode, Suspense, useEffect, useRef, useState } from "react";
import { client, newId, reply } from "../api/client";
import { useText } from "../i18n";
import { Boundary } from "../shell/ErrorBoundary";
import { fetched } from "../shell/fetched";
import { Button, Dialog, Field, Form } from "../shell/kit";
import { useSession } from "../shell/Session";
import { ErrorState, Loading } from "../shell/states";
import { sendable, type VersionDocument } from "./document";
import { type Version, versionsOf, versionsQuery } from "./queries";

const MergeView = lazy(() => fetched(() => import("./MergeView")));

export interface Base {
  readonly flowId: string;
  readonly versionId: string;
  /** The version that was opened, or saved last; undefined while the list of versions does not tell it. */
  readonly version: Version | undefined;
  /** The versions that the work has been, the latest last. */
  readonly madeFrom: readonly string[];
  /** Every version that was there then. */
  readonly known: ReadonlySet<string>;
}

interface SaveActionsProps {
  readonly base: Base;
  readonly document: VersionDocument;
  readonly dirty: boolean;
  readonly broken: boolean;
  readonly errors: number;
  readonly saved: (versionId: string, document: VersionDocument) => void;
  readonly merged: (document: VersionDocument, theirs: Version) => void;
}

/** A save that would pass over what somebody else has saved meanwhile. */
class Meanwhile extends Error {
  override name = "Meanwhile";
  constructor(readonly theirs: Version) {
    super(theirs.versionId);
  }
}

interface Order {
  readonly draft: boolean;
  readonly tag: string | null;
  /** Whether what others saved meanwhile stays beside this. */
  readonly beside: boolean;
}

/** Where a version that is made now stands: over the version that its base was made from, if that is still the
 * newest, else under a tag of its own. */
export function placeOf(
  base: Base,
  rows: readonly Version[],
  order: Order,
): { parentVersionId?: string; tag?: string } {
  const made = base.version;
  const parent = made === undefined ? null : made.draft ? made.parentVersionId : made.versionId;
  const latest = rows.find((row) => row.tags.includes("latest"))?.versionId ?? null;
  const over = parent === null ? {} : { parentVersionId: parent };
  const taken = new Set(rows.flatMap((row) => row.tags));
  const named =
    order.tag !== null && !taken.has(order.tag) && order.tag !== "latest" ? { tag: order.tag } : {};
  if (parent === latest || "tag" in named) return { ...over, ...named };
  if (order.draft || order.tag !== "latest") return { ...over, tag: freeTag(taken) };
  return { parentVersionId: latest ?? "" };
}

interface Attempt {
  readonly versionId: string;
  readonly document: VersionDocument;
  readonly draft: boolean;
}

function freeTag(taken: ReadonlySet<string>): string {
  for (let number = 1; ; number += 1) if (!taken.has(`work-${number}`)) return `work-${number}`;
}

export function SaveActions({
  base,
  document,
  dirty,
  broken,
  errors,
  saved,
  merged,
}: SaveActionsProps): ReactNode {
  const say = useText("flows");
  const sayShell = useText("shell");
  const queries = useQueryClient();
  const { who } = useSession();
  const [publishing, setPublishing] = useState(false);
  const [merging, setMerging] = useState(false);
  const [tag, setTag] = useState("latest");

  const here = useRef(true);
  useEffect(() => {
    here.current = true;
    return () => {
      here.current = false;
    };
  }, []);
  /** What may be saved though no answer said so, or could not be tagged: tried again, it is not saved a second time,
   * nor taken for somebody else's. */
  const tried = useRef<readonly Attempt[]>([]);
  const keep = async (versionId: string, kept: VersionDocument): Promise<void> => {
    // It is saved, whether or not the list can be read now.
    await queries.fetchQuery({ ...versionsQuery(base.flowId), staleTime: 0 }).catch(() => undefined);
    void queries.invalidateQueries({ queryKey: ["flows"], exact: true });
    if (here.current) saved(versionId, kept); // who has left meanwhile is not brought back
  };
  const saving = useMutation({
    mutationFn: async (order: Order) => {
      const path = { flow_id: base.flowId };
      const rows = versionsOf(await queries.fetchQuery({ ...versionsQuery(base.flowId), staleTime: 0 }));
      const own = new Set(tried.current.map((each) => each.versionId));
      const theirs = rows.find((row) => !base.known.has(row.versionId) && !own.has(row.versionId));
      if (theirs !== undefined && !order.beside) throw new Meanwhile(theirs);
      const made = tried.current.find((each) => each.document === document && each.draft === order.draft) ?? {
        versionId: newId(),
        document,
        draft: order.draft,
      };
      tried.current = [...tried.current, made];
      const version = base.version ?? rows.find((row) => row.versionId === base.versionId);
      const query = placeOf({ ...base, version }, rows, order);
      const there = rows.find((row) => row.versionId === made.versionId);
      if (there === undefined) {
        const body = { ...sendable(document, order.draft), _id: made.versionId };
        await reply(client.POST("/v1/flows/{flow_id}/versions", { params: { path, query }, body }));
      }
      const tags = there === undefined ? [query.tag] : there.tags;
      if (order.tag !== null && !tags.includes(order.tag)) {
        const tagged = { path: { ...path, tag: order.tag } };
        try {
          await reply(
            client.PUT("/v1/flows/{flow_id}/tags/{tag}", {
              params: tagged,
              body: { versionId: made.versionId, updatedBy: who.name },
            }),
          );
        } catch (error) {
          await keep(made.versionId, document);
          throw error;
        }
      }
      tried.current = [];
      return { versionId: made.versionId, kept: document };
    },
    onSuccess: async ({ versionId, kept }) => {
      await keep(versionId, kept);
      setPublishing(false);
      setMerging(false);
    },
  });
  const publish = (): void => saving.mutate({ draft: false, tag: tag.trim(), beside: false });
  const conflict = saving.error instanceof Meanwhile ? saving.error : null;
  const settle = (): void => {
    setMerging(false);
    if (!saving.isPending) saving.reset(); // the dialog also closes because it is saved after all
  };
  const failed = saving.error !== null && conflict === null ? saving.error : null;
  const unpublished = (): void => {
    setPublishing(false);
    if (failed !== null) saving.reset();
  };
  const again = { ...(saving.variables ?? { draft: true, tag: null }), beside: true };
  return (
    <>
      <Button
        disabled={!dirty || broken || saving.isPending}
        onClick={() => saving.mutate({ draft: true, tag: null, beside: false })}
      >
        {say("saveDraft")}
      </Button>
      <Button kind="primary" disabled={broken || saving.isPending} onClick={() => setPublishing(true)}>
        {say("publish")}
      </Button>
      <span role="status" className="save-status">
        {saving.isSuccess && !dirty ? say(saving.variables.draft ? "draftSaved" : "published") : ""}
      </span>

      <Dialog title={say("publish")} open={publishing && conflict === null} close={unpublished}>
        <Form submit={publish}>
          <p className="quiet">{errors > 0 ? say("publishErrors", { count: errors }) : say("publishText")}</p>
          <Field label={say("tag")} hint={say("tagHint")}>
            {(field) => (
              <input
                {...field}
                required
                pattern="[A-Za-z0-9][A-Za-z0-9._\-]*"
                value={tag}
                onChange={(event) => setTag(event.target.value)}
              />
            )}
          </Field>
          <ErrorState error={failed} did />
          <div className="row">
            <Button kind="primary" type="submit" disabled={saving.isPending || errors > 0}>
              {say("publish")}
            </Button>
            <Button onClick={unpublished}>{sayShell("cancel")}</Button>
          </div>
        </Form>
      </Dialog>
      <Dialog title={say("notSaved")} open={failed !== null && !publishing} close={settle}>
        <ErrorState error={failed} did retry={() => saving.variables && saving.mutate(saving.variables)} />
      </Dialog>
      <Dialog wide title={say("meanwhile")} open={conflict !== null} close={settle}>
        {conflict === null ? null : (
          <div className="stack">
            <p>{say("meanwhileText", { who: conflict.theirs.createdBy })}</p>
            {merging ? (
              <Boundary place={conflict}>
                <Suspense fallback={<Loading />}>
                  <MergeView
                    flowId={base.flowId}
                    theirs={conflict.theirs}
                    ours={document}
                    madeFrom={base.madeFrom}
                    take={(next) => {
                      merged(next, conflict.theirs);
                      settle();
                    }}
                  />
                </Suspense>
              </Boundary>
            ) : (
              <div className="row">
                <Button kind="primary" onClick={() => setMerging(true)}>
                  {say("merge")}
                </Button>
                <Button onClick={() => saving.mutate(again)}>{say("saveBeside")}</Button>
                <Button onClick={settle}>{sayShell("cancel")}</Button>
              </div>
            )}
          </div>
        )}
      </Dialog>
    </>
  );
}
