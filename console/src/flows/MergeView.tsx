import { useMutation, useQuery } from "@tanstack/react-query";
import { type ReactNode, useEffect, useRef, useState } from "react";
import { client, reply, type Schemas } from "../api/client";
import { useText } from "../i18n";
import { Changes, textOf } from "../publishing/Changes";
import { Button } from "../shell/kit";
import { ErrorState, Loading } from "../shell/states";
import { segmentsOf, sendable, type VersionDocument } from "./document";
import { difference } from "./editor";
import { type Version, versionsOf, versionsQuery } from "./queries";
import { useVersionName } from "./VersionField";

type Conflict = Schemas["MergeConflict"];
type Choices = NonNullable<Schemas["MergeWork"]["choices"]>;
type Side = (typeof SIDES)[number];

const SIDES = ["base", "ours", "theirs"] as const;
/** Where tasks stand is nobody's work: it stays as it is here. */
const NOT_ASKED = "/uiMetadata/positions/";

interface MergeViewProps {
  readonly flowId: string;
  readonly theirs: Version;
  readonly ours: VersionDocument;
  /** The versions that `ours` has been, the latest last. */
  readonly madeFrom: readonly string[];
  readonly take: (document: VersionDocument) => void;
}

/** Work that is not saved, merged with what somebody else has saved meanwhile: the service finds the version that both
 * were made from and takes what only one has changed; what both have is decided here. */
export default function MergeView({ flowId, theirs, ours, madeFrom, take }: MergeViewProps): ReactNode {
  const say = useText("flows");
  const named = useVersionName();
  const frame = useRef<HTMLDivElement>(null);
  const [choices, setChoices] = useState<Choices>({});
  const versions = versionsOf(useQuery(versionsQuery(flowId)).data ?? []);
  const merge = (decided: Choices) =>
    reply(
      client.POST("/v1/flows/{flow_id}/versions/{version_id}/merge", {
        params: { path: { flow_id: flowId, version_id: theirs.versionId } },
        body: { document: sendable(ours, theirs.draft), madeFrom: [...madeFrom], choices: decided },
      }),
    );
  const found = useQuery({
    queryKey: ["merge", flowId, theirs.versionId],
    queryFn: () => merge({}),
    staleTime: Number.POSITIVE_INFINITY,
    gcTime: 0, // another time it is of other work
  });
  const settling = useMutation({
    mutationFn: () => merge(choices),
    onSuccess: ({ document }) => take(document as VersionDocument),
  });
  useEffect(() => frame.current?.focus(), []);
  const conflicts = (found.data?.conflicts ?? []).filter(({ path }) => !path.startsWith(NOT_ASKED));
  const left = conflicts.filter(({ path }) => choices[path] === undefined).length;
  const all = (side: Side): void => setChoices(Object.fromEntries(conflicts.map(({ path }) => [path, side])));
  const base = versions.find((each) => each.versionId === found.data?.baseVersionId);
  return (
    <div className="stack" ref={frame} tabIndex={-1}>
      {found.isPending ? <Loading /> : null}
      <ErrorState error={found.error} retry={() => void found.refetch()} />
      {found.data === undefined ? null : (
        <>
          <dl className="merge-versions">
            <dt>{say("theirs")}</dt>
            <dd>{named(theirs)}</dd>
            <dt>{say("mergeBase")}</dt>
            <dd>{base === undefined ? found.data.baseVersionId : named(base)}</dd>
          </dl>
          <p role="status">
            {conflicts.length === 0 ? say("noConflicts") : say("toDecide", { count: left })}
          </p>
          {conflicts.length < 2 ? null : (
            <div className="row">
              <Button onClick={() => all("ours")}>{say("allOurs")}</Button>
              <Button onClick={() => all("theirs")}>{say("allTheirs")}</Button>
            </div>
          )}
          {conflicts.map((conflict) => (
            <ConflictForm
              key={conflict.path}
              conflict={conflict}
              document={ours}
              chosen={choices[conflict.path]}
              choose={(side) => setChoices({ ...choices, [conflict.path]: side })}
            />
          ))}
          {found.data.changes.length === 0 ? null : (
            <details className="form-more">
              <summary>{say("takenOver", { count: found.data.changes.length })}</summary>
              <div className="stack">
                <Changes changes={found.data.changes} />
              </div>
            </details>
          )}
          <ErrorState error={settling.error} did />
          <div className="row">
            <Button
              kind="primary"
              disabled={left > 0 || settling.isPending}
              onClick={() => settling.mutate()}
            >
              {say("takeMerge")}
            </Button>
          </div>
        </>
      )}
    </div>
  );
}

interface ConflictFormProps {
  readonly conflict: Conflict;
  readonly document: VersionDocument;
  readonly chosen: Side | undefined;
  readonly choose: (side: Side) => void;
}

function ConflictForm({ conflict, document, chosen, choose }: ConflictFormProps): ReactNode {
  const say = useText("flows");
  const title = { base: say("mergeBase"), ours: say("ours"), theirs: say("theirs") };
  return (
    <fieldset className="form-group">
      <legend>{placeOf(document, conflict.path)}</legend>
      <div className="merge-sides">
        {SIDES.map((side) => (
          <div key={side} className="merge-side">
            <label className="choice">
              <input
                type="radio"
                name={conflict.path}
                checked={chosen === side}
                onChange={() => choose(side)}
              />
              {title[side]}
            </label>
            {conflict[side] === null ? (
              <p className="quiet">{say("notThere")}</p>
            ) : (
              <pre className="raw">
                <Marked value={conflict[side]} base={conflict.base} />
              </pre>
            )}
          </div>
        ))}
      </div>
    </fieldset>
  );
}

/** A value with what is another there than in the base. */
function Marked({ value, base }: { readonly value: unknown; readonly base: unknown }): ReactNode {
  const text = textOf(value);
  if (base === null) return text;
  const { from, insert } = difference(textOf(base), text);
  const to = from + insert.length;
  return (
    <>
      {text.slice(0, from)}
      {insert === "" ? null : <mark>{insert}</mark>}
      {text.slice(to)}
    </>
  );
}

/** A conflict's place in words: things by their names. */
function placeOf(document: VersionDocument, path: string): string {
  const [collection = "", id, ...within] = segmentsOf(path);
  if (id === undefined) return collection;
  const things: unknown = (document as Readonly<Record<string, unknown>>)[collection];
  const found = Array.isArray(things) ? things.find((each) => each?._id === id) : undefined;
  return [collection, found?.name || id, ...within].join(" › ");
}
