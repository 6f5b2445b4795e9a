import {
  applyNodeChanges,
  Background,
  type Connection,
  Controls,
  type Edge,
  type EdgeChange,
  type NodeChange,
  ReactFlow,
  ReactFlowProvider,
  useReactFlow,
} from "@xyflow/react";
import {
  type Dispatch,
  type KeyboardEvent,
  type ReactNode,
  type RefObject,
  type SetStateAction,
  useCallback,
  useEffect,
  useLayoutEffect,
  useMemo,
  useRef,
  useState,
} from "react";
import { useText } from "../i18n";
import { Button } from "../shell/kit";
import {
  connected,
  disconnected,
  freeName,
  nameOf,
  newTask,
  type Point,
  pasted,
  placed,
  type Task,
  taskById,
  tasksOf,
  type VersionDocument,
  withoutTasks,
  withTask,
} from "./document";
import { edgesOf, inOwnLayers, nodesOf, reused, type Shown, type TaskNodeType } from "./graph";
import { hidden, toPanel } from "./graphFocus";
import { wordsOf } from "./graphWords";
import { arranged, freePlace, NODE } from "./layout";
import { Overview } from "./Overview";
import { TaskEdge } from "./TaskEdge";
import { TaskNode } from "./TaskNode";
import { usePositions } from "./usePositions";
import { FIT, type Seen, useView } from "./useView";
import "@xyflow/react/dist/style.css";
import "./canvas.css";

export interface CanvasProps {
  readonly document: VersionDocument;
  readonly change: (document: VersionDocument, as?: string) => void;
  /** Null while there is nothing to undo; so with redo. */
  readonly undo: (() => void) | null;
  readonly redo: (() => void) | null;
  readonly shown: Shown;
  readonly select: (ids: ReadonlySet<string>) => void;
  /** The connections that are chosen, by their ids. */
  readonly ways: ReadonlySet<string>;
  readonly chooseWays: Dispatch<SetStateAction<ReadonlySet<string>>>;
  /** A connection was asked for, maybe one that is chosen already. */
  readonly showWay: () => void;
  /** The task to bring into view, with a number that rises with each wish. */
  readonly wanted: { readonly id: string; readonly nth: number } | null;
  /** What was in view when the graph was shown before. */
  readonly seen: RefObject<Seen | null>;
  readonly readOnly: boolean;
}

// One object each: with another one at a render React Flow lets every node and edge look again at all there is.
const NODE_TYPES = { task: TaskNode };
const EDGE_TYPES = { way: TaskEdge };
const MULTI_SELECTION_KEYS = ["Shift", "Control", "Meta"];
const NONE: ReadonlySet<string> = new Set();
let copied: { readonly tasks: readonly Task[]; readonly positions: Readonly<Record<string, Point>> } | null =
  null;

export default function Canvas(props: CanvasProps): ReactNode {
  return (
    <ReactFlowProvider>
      <Drawing {...props} />
    </ReactFlowProvider>
  );
}

function useReused<Item extends { readonly id: string }>(next: Item[]): Item[] {
  const last = useRef(next);
  const kept = useMemo(() => reused(last.current, next), [next]);
  useLayoutEffect(() => {
    last.current = kept;
  }, [kept]);
  return kept;
}

function Drawing(props: CanvasProps): ReactNode {
  const { document, change, undo, redo, shown, select, ways, chooseWays, showWay, wanted, seen, readOnly } =
    props;
  const say = useText("flows");
  const flow = useReactFlow<TaskNodeType>();
  const { positions, better } = usePositions(document);
  const { told, words } = useMemo(() => wordsOf(say), [say]);
  const drawn = useReused(
    useMemo(() => nodesOf(document, positions, shown, told), [document, positions, shown, told]),
  );
  const [nodes, setNodes] = useState<TaskNodeType[]>(drawn);
  const drawnLast = useRef(drawn);
  useEffect(() => {
    const as = new Set(drawnLast.current);
    drawnLast.current = drawn;
    setNodes((before) => {
      const known = new Map(before.map((node) => [node.id, node]));
      return drawn.map((node) => {
        const there = known.get(node.id);
        return there !== undefined && as.has(node) ? there : { ...there, ...node };
      });
    });
  }, [drawn]);
  const [dragged, setDragged] = useState<ReadonlySet<string>>(NONE);
  const edges = useReused(useMemo(() => edgesOf(document, ways, told), [document, ways, told]));
  const edgesDrawn = useMemo(() => inOwnLayers(edges, dragged), [edges, dragged]);
  const dragStarted = useCallback(
    (_: unknown, __: unknown, all: TaskNodeType[]) => setDragged(new Set(all.map((node) => node.id))),
    [],
  );
  const dragEnded = useCallback(() => setDragged(NONE), []);

  const moved = useCallback(
    (changes: NodeChange<TaskNodeType>[]) => {
      setNodes((before) => applyNodeChanges(changes, before));
      const put: Record<string, Point> = {};
      // One that is gone stays chosen for an undo to bring it back so; beside another one it would count as a second.
      const chosen = new Set([...shown.selected].filter((id) => taskById(document, id) !== undefined));
      for (const each of changes) {
        if (each.type === "position" && each.position !== undefined && each.dragging === false)
          put[each.id] = each.position;
        if (each.type === "select" && each.selected) chosen.add(each.id);
        if (each.type === "select" && !each.selected) chosen.delete(each.id);
      }
      if (changes.some((each) => each.type === "select")) select(chosen);
      const ids = Object.keys(put);
      if (ids.length > 0) change(placed(document, { ...positions, ...put }), `move ${ids.join(" ")}`);
    },
    [change, document, positions, select, shown.selected],
  );
  const edgesChanged = useCallback(
    (changes: EdgeChange[]) => {
      chooseWays((before) => {
        const next = new Set(before);
        for (const each of changes) {
          if (each.type === "select" && each.selected) next.add(each.id);
          if (each.type === "select" && !each.selected) next.delete(each.id);
        }
        return next;
      });
    },
    [chooseWays],
  );
  const selectOnly = (ids: ReadonlySet<string>): void => {
    chooseWays(NONE);
    select(ids);
  };
  const joined = useCallback(
    ({ source, target }: Connection): void => change(connected(document, source, target)),
    [change, document],
  );
  const removed = useCallback(
    ({ nodes: gone, edges: cut }: { nodes: TaskNodeType[]; edges: Edge[] }): void => {
      const without = cut.reduce((next, edge) => disconnected(next, edge.source, edge.target), document);
      change(withoutTasks(without, new Set(gone.map((node) => node.id))));
    },
    [change, document],
  );

  const frame = useRef<HTMLDivElement>(null);
  const { look, keepInView, looksAround } = useView({ frame, better, wanted, active: shown.active, seen });
  const byKey = useRef(false);
  const uncover = useCallback(() => {
    const id = byKey.current ? hidden(frame.current) : undefined; // under the pointer nothing moves
    if (id !== undefined) look(edges.find((each) => each.id === id)?.source ?? id);
  }, [look, edges]);
  // biome-ignore lint/correctness/useExhaustiveDependencies: with what is chosen a panel comes, and tasks move below it
  useEffect(() => {
    const drawing = requestAnimationFrame(uncover);
    return () => cancelAnimationFrame(drawing);
  }, [uncover, shown.selected, nodes]);

  const add = (): void => {
    const id = freeName("task", new Set(tasksOf(document).flatMap((task) => [task._id, nameOf(task)])));
    const middle = flow.screenToFlowPosition(centre(frame.current));
    const at = freePlace(positions, { x: middle.x - NODE.width / 2, y: middle.y - NODE.height / 2 });
    change(withTask(placed(document, positions), newTask(id), at));
    selectOnly(new Set([id]));
    requestAnimationFrame(() => {
      toPanel(frame.current, "input");
      keepInView(at);
    });
  };
  const copy = (): void => {
    const tasks = tasksOf(document).filter((task) => shown.selected.has(task._id));
    if (tasks.length > 0) copied = { tasks, positions };
  };
  const paste = (): void => {
    if (copied === null) return;
    const next = pasted(document, copied.tasks, copied.positions);
    change(next.document);
    selectOnly(next.ids);
  };
  const remove = (): void =>
    void flow.deleteElements({
      nodes: nodes.filter((node) => node.selected),
      edges: edges.filter((edge) => edge.selected),
    });
  // What is arranged is the document of when that is done; null while it is not to be changed.
  const changeable = useRef<VersionDocument | null>(null);
  useLayoutEffect(() => {
    changeable.current = readOnly ? null : document;
    return () => {
      changeable.current = null;
    };
  }, [document, readOnly]);
  const arrange = async (): Promise<void> => {
    const found = await arranged(document);
    const now = changeable.current;
    if (now === null) return;
    const there = Object.entries(found).filter(([id]) => taskById(now, id) !== undefined);
    change(placed(now, Object.fromEntries(there)));
    void flow.fitView({ ...FIT, duration: 200 });
  };

  const search = useRef<HTMLInputElement>(null);
  const keys: Readonly<Record<string, (() => void) | null>> = {
    "mod+z": undo,
    "mod+shift+z": redo,
    "mod+y": redo,
    "mod+c": copy,
    "mod+v": paste,
    "mod+a": () => select(new Set(tasksOf(document).map((task) => task._id))),
    n: add,
    delete: remove,
    backspace: remove,
    "/": () => search.current?.focus(),
  };
  const pressed = (event: KeyboardEvent): void => {
    const at = event.target as Element;
    if (event.key === "Enter" && at.matches(".react-flow__edge")) showWay();
    const leads = at === search.current || at.matches(".selected");
    if (event.key === "Tab" && !event.shiftKey && leads && toPanel(frame.current, "button"))
      event.preventDefault();
    if (event.target instanceof HTMLInputElement || readOnly) return;
    const name = `${event.ctrlKey || event.metaKey ? "mod+" : ""}${event.shiftKey ? "shift+" : ""}${event.key.toLowerCase()}`;
    const act = keys[name];
    if (act === undefined) return;
    event.preventDefault();
    act?.();
  };
  /** What is chosen no more keeps the focus: React Flow would take it away. */
  const escaped = (event: KeyboardEvent): void => {
    looksAround();
    byKey.current = true;
    if (event.key !== "Escape" || !(event.target as Element).matches(".react-flow__node, .react-flow__edge"))
      return;
    event.stopPropagation();
    selectOnly(NONE);
  };
  const [found, setFound] = useState(true);
  /** The first task with a text in its name or id, where none has it in what it says, or the next one after that which is
   * selected. */
  const find = (text: string, next = false): void => {
    const low = text.trim().toLowerCase();
    const having = (text: (task: Task) => string): readonly Task[] =>
      tasksOf(document).filter((task) => text(task).toLowerCase().includes(low));
    const named = having((task) => `${nameOf(task)} ${task._id}`);
    const hits = named.length > 0 ? named : having((task) => `${task.description} ${task.prompt}`);
    const at = next ? hits.findIndex((task) => shown.selected.has(task._id)) + 1 : 0;
    const hit = low === "" ? undefined : hits[at % hits.length];
    setFound(low === "" || hit !== undefined);
    if (hit === undefined) return;
    selectOnly(new Set([hit._id]));
    requestAnimationFrame(() => look(hit._id)); // its panel is there by then
  };

  return (
    // biome-ignore lint/a11y/noStaticElementInteractions: shortcuts of the canvas, each of which has a button or a key of its own
    <div
      className="canvas"
      ref={frame}
      tabIndex={-1}
      onFocus={uncover}
      onKeyDown={pressed}
      onKeyDownCapture={escaped}
      onPointerDownCapture={() => {
        looksAround();
        byKey.current = false;
      }}
      onWheelCapture={looksAround}
    >
      <div className="canvas-tools" role="toolbar" aria-label={say("tools")}>
        <Button disabled={readOnly} onClick={add} title="N">
          {say("addTask")}
        </Button>
        <Button kind="bare" onClick={() => undo?.()} title="Ctrl+Z" disabled={readOnly || undo === null}>
          {say("undo")}
        </Button>
        <Button
          kind="bare"
          onClick={() => redo?.()}
          title="Ctrl+Shift+Z"
          disabled={readOnly || redo === null}
        >
          {say("redo")}
        </Button>
        <Button kind="bare" onClick={() => void arrange()} disabled={readOnly}>
          {say("arrange")}
        </Button>
        <input
          ref={search}
          type="search"
          className="canvas-search"
          aria-label={say("searchTasks")}
          placeholder={say("searchTasks")}
          aria-invalid={!found}
          onChange={(event) => find(event.target.value)}
          onKeyDown={(event) => event.key === "Enter" && find(event.currentTarget.value, true)}
        />
        <a className="skip" href="#problems">
          {say("skipGraph")}
        </a>
      </div>
      <ReactFlow<TaskNodeType>
        nodes={nodes}
        edges={edgesDrawn}
        nodeTypes={NODE_TYPES}
        edgeTypes={EDGE_TYPES}
        onNodesChange={moved}
        onEdgesChange={edgesChanged}
        onEdgeClick={showWay}
        onNodeDragStart={dragStarted}
        onNodeDragStop={dragEnded}
        onConnect={joined}
        onDelete={removed}
        nodesDraggable={!readOnly}
        nodesConnectable={!readOnly}
        deleteKeyCode={null}
        multiSelectionKeyCode={MULTI_SELECTION_KEYS}
        elevateEdgesOnSelect
        minZoom={0.02}
        aria-label={say("canvas")}
        role="application"
        ariaLabelConfig={words}
      >
        <Background gap={24} />
        <Overview />
        <Controls showInteractive={false} fitViewOptions={FIT} />
      </ReactFlow>
    </div>
  );
}

/** The middle of what the panel of a task leaves, which is there in a moment. */
function centre(element: HTMLElement | null): Point {
  const box = element?.getBoundingClientRect();
  if (box === undefined) return { x: 0, y: 0 };
  return { x: box.x + (box.width - Math.min(400, 0.6 * box.width)) / 2, y: box.y + box.height / 2 };
}
