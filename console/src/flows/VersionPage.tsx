import { useQuery } from "@tanstack/react-query";
import { Tabs } from "radix-ui";
import {
  lazy,
  type ReactNode,
  Suspense,
  useCallback,
  useDeferredValue,
  useEffect,
  useMemo,
  useReducer,
  useRef,
  useState,
} from "react";
import { useBlocker, useNavigate, useParams } from "react-router";
import { useMoment, useText } from "../i18n";
import { versionAddress } from "../shell/addresses";
import { Boundary } from "../shell/ErrorBoundary";
import { fetched } from "../shell/fetched";
import { Badge, Button, Dialog } from "../shell/kit";
import { useSession } from "../shell/Session";
import { EmptyState, Loading, NotYet, ScopeMissing } from "../shell/states";
import { Simulations } from "../talk/Simulations";
import { Talk } from "../talk/Talk";
import { segmentsOf, taskAt, taskById, type VersionDocument } from "./document";
import { edit, isDirty, opened } from "./editor";
import { FlowHead } from "./FlowHead";
import { onlyWay } from "./graph";
import { Problems } from "./Problems";
import { FOR_NOBODY } from "./PromptField";
import { schemaQuery, type Version, versionQuery, versionsOf, versionsQuery } from "./queries";
import { SaveActions } from "./SaveActions";
import { SettingsView, settingsOf } from "./SettingsView";
import { TaskPanel } from "./TaskPanel";
import type { Seen } from "./useView";
import { marksOf, useVerdict } from "./verdict";
import "./flows.css";

const Canvas = lazy(() => fetched(() => import("./Canvas")));
const DocumentView = lazy(() => fetched(() => import("./DocumentView")));

/** A version that is looked at and worked on. What is saved is another version, on which the same work goes on. */
export default function VersionPage(): ReactNode {
  const { flowId = "", versionId = "" } = useParams();
  const [work, setWork] = useState({ begunWith: versionId, versions: new Set([versionId]) });
  if (!work.versions.has(versionId)) setWork({ begunWith: versionId, versions: new Set([versionId]) });
  const enabled = useSession().may("designer");
  const document = useQuery({ ...versionQuery(flowId, work.begunWith), enabled });
  const versions = useQuery({ ...versionsQuery(flowId), enabled });
  const navigate = useNavigate();
  const saved = useCallback(
    (made: string) => {
      setWork((before) => ({ ...before, versions: new Set([...before.versions, made]) }));
      void navigate(versionAddress(flowId, made), { replace: true });
    },
    [flowId, navigate],
  );
  if (!enabled) return <ScopeMissing scope="designer" />;
  // Once it is open it stays: a refusal or a lost connection later must not take away what is being worked on.
  if (document.data === undefined || versions.data === undefined)
    return (
      <>
        <FlowHead flowId={flowId} />
        <NotYet of={[document, versions]} />
      </>
    );
  return (
    <Workbench
      key={work.begunWith}
      flowId={flowId}
      versionId={versionId}
      document={document.data}
      versions={versionsOf(versions.data)}
      saved={saved}
    />
  );
}

interface WorkbenchProps {
  readonly flowId: string;
  readonly versionId: string;
  readonly document: VersionDocument;
  readonly versions: readonly Version[];
  readonly saved: (versionId: string) => void;
}

const NOTHING: ReadonlySet<string> = new Set();
/** Of the versions that a work has been, so many are looked at for what it has in common with another. */
const MOST_MADE_FROM = 10;

function Workbench({ flowId, versionId, document: begun, versions, saved }: WorkbenchProps): ReactNode {
  const say = useText("flows");
  const readOnly = !useSession().may("designer");
  const [state, act] = useReducer(edit, begun, opened);
  // The version itself is known too: the list may have been read before the version was made.
  const [known, setKnown] = useState<ReadonlySet<string>>(
    () => new Set([versionId, ...versions.map((each) => each.versionId)]),
  );
  const [been, setBeen] = useState<readonly string[]>([versionId]);
  const [tab, setTab] = useState("graph");
  const [selected, setSelected] = useState<ReadonlySet<string>>(NOTHING);
  const [ways, setWays] = useState<ReadonlySet<string>>(NOTHING);
  const [wayAsked, setWayAsked] = useState(0);
  const [active, setActive] = useState<string | null>(null);
  const [covered, setCovered] = useState<ReadonlySet<string> | null>(null);
  const [wanted, setWanted] = useState({ id: "", pointer: "", nth: 0 });
  const [renderedFor, renderFor] = useState(FOR_NOBODY);
  const seen = useRef<Seen | null>(null);
  const [mergedWith, setMergedWith] = useState<Version | null>(null);
  const { document, typed, brokenText } = state;
  // The graph shows what the text was last: a change of it would be one of that, and the text would be lost.
  const held = readOnly || brokenText !== null;
  const verdict = useVerdict(flowId, document, brokenText, !readOnly);
  const schema = useQuery(schemaQuery("flow-version")).data;
  const dirty = isDirty(state);

  const change = useCallback(
    (next: VersionDocument, as?: string) =>
      act(as === undefined ? { do: "change", document: next } : { do: "change", document: next, as }),
    [],
  );
  const showWay = useCallback(() => setWayAsked((before) => before + 1), []);
  const undo = useCallback(() => act({ do: "undo" }), []);
  const redo = useCallback(() => act({ do: "redo" }), []);
  const choose = (id: string | null, pointer = ""): void => {
    setSelected(id === null ? NOTHING : new Set([id]));
    setWays(NOTHING);
    if (id !== null) setWanted((before) => ({ id, pointer, nth: before.nth + 1 }));
  };
  const go = (pointer: string): void => {
    const id = taskAt(document, pointer);
    const isSetting = schema !== undefined && settingsOf(schema).includes(segmentsOf(pointer)[0] ?? "");
    const formed = tab !== "document" && brokenText === null;
    if (formed && id !== null) {
      setTab("graph");
      choose(id, pointer);
      return;
    }
    setTab(formed && isSetting ? "settings" : "document");
    setWanted((before) => ({ id: "", pointer, nth: before.nth + 1 }));
  };
  const openTab = (next: string): void => {
    setTab(next);
    setWanted((before) => ({ ...before, pointer: "" })); // it has been gone to
  };
  // The problems of a large flow are drawn once there is time, and what is chosen in them is about the flow of then.
  const now = useRef({ document, go });
  now.current = { document, go };
  const goNow = useCallback((pointer: string) => now.current.go(pointer), []);
  const fixNow = useCallback(
    (apply: (document: VersionDocument) => VersionDocument) => change(apply(now.current.document)),
    [change],
  );
  const soon = useDeferredValue(document);
  const errors = verdict.problems.filter((each) => each.severity === "error").length;
  const marks = useMemo(() => marksOf(verdict.problems, document), [verdict.problems, document]);
  const shown = useMemo(() => ({ active, selected, marks, covered }), [active, selected, marks, covered]);
  const way = selected.size === 0 ? onlyWay(document, ways) : undefined;
  const task = selected.size === 1 ? taskById(document, [...selected][0] ?? null) : way?.task;
  const version = versions.find((each) => each.versionId === versionId);
  const wantedTask = wanted.id === "" ? null : wanted;
  const wantedPlace = segmentsOf(wanted.pointer).length === 0 ? null : wanted;
  // What is typed may have any type, and the problems say so: it must not take the page and all work with it.
  const cannotBeDrawn = (
    <EmptyState
      title={say("cannotBeDrawn")}
      actions={<Button onClick={() => setTab("document")}>{say("documentTab")}</Button>}
    >
      {say("cannotBeDrawnText")}
    </EmptyState>
  );

  return (
    <div className="workbench">
      <LeavingHeld dirty={dirty} />
      <FlowHead flowId={flowId} intro={<VersionNote version={version} dirty={dirty} />}>
        {readOnly ? undefined : (
          <SaveActions
            base={{ flowId, versionId, version: mergedWith ?? version, madeFrom: been, known }}
            document={document}
            dirty={dirty}
            broken={brokenText !== null}
            errors={errors}
            saved={(made, kept) => {
              act({ do: "saved", document: kept });
              setKnown((before) => new Set([...before, made]));
              setBeen((before) => [...before, made].slice(-MOST_MADE_FROM));
              setMergedWith(null);
              saved(made);
            }}
            merged={(next, theirs) => {
              change(next);
              setMergedWith(theirs);
              setKnown((before) => new Set([...before, theirs.versionId]));
              setBeen((before) => [...before, theirs.versionId].slice(-MOST_MADE_FROM));
            }}
          />
        )}
      </FlowHead>
      <div className="work-columns">
        <div className="work-main">
          <Tabs.Root className="panel work-views" value={tab} onValueChange={openTab}>
            <Tabs.List className="tabs" aria-label={say("views")}>
              {(["graph", "settings", "document"] as const).map((each) => (
                <Tabs.Trigger key={each} className="tab" value={each}>
                  {say(`${each}Tab`)}
                </Tabs.Trigger>
              ))}
            </Tabs.List>
            {tab !== "document" && brokenText !== null ? (
              <p role="status" className="view-note">
                {say("graphWaits")}
              </p>
            ) : null}
            <Tabs.Content value="graph" className="view" tabIndex={-1}>
              <Suspense fallback={<Loading />}>
                <Boundary place={document} instead={cannotBeDrawn}>
                  <Canvas
                    document={document}
                    change={change}
                    undo={state.past.length > 0 ? undo : null}
                    redo={state.future.length > 0 ? redo : null}
                    shown={shown}
                    select={setSelected}
                    ways={ways}
                    chooseWays={setWays}
                    showWay={showWay}
                    wanted={wantedTask}
                    seen={seen}
                    readOnly={held}
                  />
                </Boundary>
                {task === undefined ? null : (
                  <Boundary place={document} instead={cannotBeDrawn}>
                    <TaskPanel
                      flowId={flowId}
                      renderedFor={renderedFor}
                      renderFor={renderFor}
                      document={document}
                      task={task}
                      way={way?.to}
                      wayAsked={wayAsked}
                      wanted={wantedPlace}
                      schema={schema}
                      change={change}
                      select={choose}
                      readOnly={held}
                    />
                  </Boundary>
                )}
              </Suspense>
            </Tabs.Content>
            <Tabs.Content value="settings" className="view" tabIndex={-1}>
              {schema === undefined ? (
                <Loading />
              ) : (
                <Boundary place={document} instead={cannotBeDrawn}>
                  <SettingsView
                    document={document}
                    schema={schema}
                    change={change}
                    wanted={wantedPlace}
                    readOnly={held}
                  />
                </Boundary>
              )}
            </Tabs.Content>
            <Tabs.Content value="document" className="view" tabIndex={-1}>
              <Suspense fallback={<Loading />}>
                <Boundary place={document}>
                  <DocumentView
                    document={document}
                    typed={typed}
                    type={(text, as) => act({ do: "type", text, as })}
                    undo={undo}
                    redo={redo}
                    problems={verdict.problems}
                    schema={schema}
                    wanted={wantedPlace}
                    readOnly={readOnly}
                  />
                </Boundary>
              </Suspense>
            </Tabs.Content>
          </Tabs.Root>
          <Boundary place={verdict}>
            <Problems verdict={verdict} document={soon} go={goNow} fix={fixNow} readOnly={held} />
          </Boundary>
        </div>
        <div className="work-side">
          <Talk
            flowId={flowId}
            versionId={versionId}
            document={document}
            dirty={dirty}
            errors={errors}
            active={setActive}
            covered={setCovered}
          />
          <Simulations
            flowId={flowId}
            document={document}
            jump={(taskId) => {
              setTab("graph");
              choose(taskId);
            }}
          />
        </div>
      </div>
    </div>
  );
}

interface NoteProps {
  readonly version: Version | undefined;
  readonly dirty: boolean;
}

function VersionNote({ version, dirty }: NoteProps): ReactNode {
  const say = useText("flows");
  const moment = useMoment();
  return (
    <span className="row">
      {version?.draft ? <Badge tone="warn">{say("draft")}</Badge> : null}
      {version?.tags.map((tag) => (
        <Badge key={tag} tone="accent">
          {tag}
        </Badge>
      ))}
      {version === undefined ? null : (
        <span>{say("changedBy", { when: moment(version.createdAt), who: version.createdBy })}</span>
      )}
      {dirty ? <span>{say("unsaved")}</span> : null}
    </span>
  );
}

/** Work that is not saved is left on purpose only: the browser asks before the page is closed, a dialog before another
 * one is shown. */
function LeavingHeld({ dirty }: { readonly dirty: boolean }): ReactNode {
  const say = useText("flows");
  const now = useRef(dirty);
  now.current = dirty;
  useEffect(() => {
    const leaving = (event: BeforeUnloadEvent): void => {
      if (now.current) event.preventDefault();
    };
    window.addEventListener("beforeunload", leaving);
    return () => window.removeEventListener("beforeunload", leaving);
  }, []);
  const held = useBlocker(
    ({ currentLocation, nextLocation, historyAction }) =>
      // A save replaces the address by that of what it made, and the same work goes on there.
      dirty && historyAction !== "REPLACE" && nextLocation.pathname !== currentLocation.pathname,
  );
  const stay = (): void => {
    if (held.state === "blocked") held.reset();
  };
  return (
    <Dialog title={say("leaveTitle")} open={held.state === "blocked"} close={stay}>
      <div className="stack">
        <p>{say("leaveText")}</p>
        <div className="row">
          <Button kind="primary" onClick={stay}>
            {say("stay")}
          </Button>
          <Button kind="danger" onClick={() => held.proceed?.()}>
            {say("leave")}
          </Button>
        </div>
      </div>
    </Dialog>
  );
}
