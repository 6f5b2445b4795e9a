import { useMutation, useQuery } from "@tanstack/react-query";
import { type ChangeEvent, type ReactNode, useEffect, useId, useRef, useState } from "react";
import type { VersionDocument } from "../flows/document";
import { segmentsOf } from "../flows/document";
import { labelOf, resolved } from "../flows/jsonSchema";
import { schemaQuery } from "../flows/queries";
import { Properties } from "../flows/SchemaForm";
import { useText } from "../i18n";
import { Badge, Button, Field, NumberInput } from "../shell/kit";
import { useSession } from "../shell/Session";
import { ErrorState, lastError } from "../shell/states";
import { download } from "./download";
import {
  emptyPersona,
  fileName,
  joined,
  type Order,
  type Persona,
  portions,
  type Run,
  type Simulated,
  simulate,
  stepsOf,
} from "./simulations";

interface SimulationsProps {
  readonly flowId: string;
  readonly document: VersionDocument;
  readonly jump: (taskId: string) => void;
}

const FIRST = ["name", "goal", "mood", "language", "knowledge"];
const MOST_RUNS = 20;

/** Personas that talk to the document as it stands: who, how often, and what came of it. */
export function Simulations({ flowId, document, jump }: SimulationsProps): ReactNode {
  const say = useText("talk");
  const heading = useId();
  const { may } = useSession();
  const [opened, setOpened] = useState(false);
  const [order, setOrder] = useState<Order>(() => ({
    persona: emptyPersona(document.defaultLanguage ?? undefined),
    recording: null,
    runs: 1,
    channel: "text",
  }));
  const [recordedIn, setRecordedIn] = useState("");
  const [done, setDone] = useState<Simulated | null>(null);
  const [run, setRun] = useState(0);
  const stopping = useRef<AbortController | null>(null);
  useEffect(() => () => stopping.current?.abort(), []);
  const reading = useMutation({
    mutationFn: (personaYaml: string) => simulate(flowId, document, { personaYaml, runs: 0 }),
    onSuccess: ({ persona }) => setOrder((before) => ({ ...before, persona })),
  });
  const saving = useMutation({
    mutationFn: () => simulate(flowId, document, { persona: sent(order.persona), runs: 0 }),
    onSuccess: (known) => download(known.personaYaml, fileName(known.persona, ".yaml")),
  });
  const playing = useMutation({
    mutationFn: async () => {
      const stop = new AbortController();
      stopping.current = stop;
      let known: Simulated | null = null;
      setDone(null);
      for (const runs of portions(order)) {
        if (stop.signal.aborted) return;
        setRun((known?.runs ?? 0) + 1);
        const { channel, recording } = order;
        const body = { persona: sent(order.persona), runs, channel };
        const asked = recording === null ? body : { ...body, recordingYaml: recording };
        known = joined(known, await simulate(flowId, document, asked, stop.signal));
        setDone(known);
        if (known.modelFailed !== null) return;
      }
    },
  });
  if (!may("designer")) return null;
  const failed = lastError(reading, saving, playing);
  const error = failed?.name === "AbortError" ? null : failed; // it was stopped here
  const recorded = (text: string, name: string): void => {
    setOrder((before) => ({ ...before, recording: text }));
    setRecordedIn(name);
  };
  return (
    <section className="panel simulations" aria-labelledby={heading}>
      <details onToggle={(event) => setOpened(event.currentTarget.open)}>
        <summary className="panel-head">
          <h2 id={heading}>{say("simTitle")}</h2>
        </summary>
        {opened ? (
          <div className="stack">
            <p className="quiet">{say("simIntro")}</p>
            <div className="row">
              <FileChoice label={say("simOpenPersona")} chosen={(text) => reading.mutate(text)} />
              <FileChoice label={say("simOpenRecording")} chosen={recorded} />
            </div>
            <PersonaForm
              document={document}
              persona={order.persona}
              change={(persona) => setOrder((before) => ({ ...before, persona }))}
            />
            {order.recording === null ? null : (
              <p className="row">
                <span>{say("simRecording", { name: recordedIn })}</span>
                <Button kind="bare" onClick={() => setOrder((before) => ({ ...before, recording: null }))}>
                  {say("simForget")}
                </Button>
              </p>
            )}
            <HowToPlay order={order} change={setOrder} />
            <div className="row">
              <Button
                kind="primary"
                disabled={playing.isPending || Number.isNaN(order.runs)}
                onClick={() => playing.mutate()}
              >
                {say("simRun")}
              </Button>
              {playing.isPending ? (
                <Button onClick={() => stopping.current?.abort()}>{say("simStop")}</Button>
              ) : null}
              <Button kind="bare" disabled={saving.isPending} onClick={() => saving.mutate()}>
                {say("simSavePersona")}
              </Button>
            </div>
            <ErrorState error={error} did called={placeOf} />
            <div role="status">
              {playing.isPending ? (
                <p className="quiet">{say("simRunning", { run, runs: order.runs })}</p>
              ) : null}
              {done === null ? null : <Verdict done={done} />}
            </div>
            {done === null ? null : <Results done={done} jump={jump} />}
          </div>
        ) : null}
      </details>
    </section>
  );
}

/** Its place in the request; what is wrong with it the service says, with every pointer. */
function sent(persona: Persona): never {
  return persona as never;
}

/** A place of the persona by the labels of its fields. */
function placeOf(pointer: string): string {
  const [of, ...place] = segmentsOf(pointer);
  return of === "persona" ? place.map(labelOf).join(" › ") : pointer;
}

function FileChoice({
  label,
  chosen,
}: {
  readonly label: string;
  readonly chosen: (text: string, name: string) => void;
}): ReactNode {
  const read = async (event: ChangeEvent<HTMLInputElement>): Promise<void> => {
    const input = event.target;
    const [file] = input.files ?? [];
    if (file !== undefined) chosen(await file.text(), file.name);
    input.value = ""; // the same file may be chosen again
  };
  return (
    <label className="button file">
      {label}
      <input type="file" accept=".yaml,.yml,.json" className="visually-hidden" onChange={read} />
    </label>
  );
}

interface PersonaFormProps {
  readonly document: VersionDocument;
  readonly persona: Persona;
  readonly change: (persona: Persona) => void;
}

/** Made from the schema of a persona: what everybody has first, the rest behind two summaries. */
function PersonaForm({ document, persona, change }: PersonaFormProps): ReactNode {
  const say = useText("talk");
  const root = useQuery(schemaQuery("persona")).data;
  if (root === undefined) return null;
  const fields = (names: readonly string[]): ReactNode => (
    <Properties
      scope={{ root, document, readOnly: false }}
      properties={names.map((name) => [name, resolved(root, root.properties?.[name]) ?? {}] as const)}
      of={persona}
      put={(part) => change({ ...persona, ...part })}
    />
  );
  const more = Object.keys(root.properties ?? {}).filter((name) => ![...FIRST, "expect"].includes(name));
  return (
    <>
      {fields(FIRST)}
      <details>
        <summary>{say("simExpected")}</summary>
        {fields(["expect"])}
      </details>
      <details>
        <summary>{say("simMore")}</summary>
        {fields(more)}
      </details>
    </>
  );
}

interface HowToPlayProps {
  readonly order: Order;
  readonly change: (order: Order) => void;
}

function HowToPlay({ order, change }: HowToPlayProps): ReactNode {
  const say = useText("talk");
  return (
    <div className="simulations-how">
      <Field label={say("simRuns")}>
        {(field) => (
          <NumberInput
            {...field}
            min={1}
            max={MOST_RUNS}
            value={order.runs}
            set={(runs) => change({ ...order, runs: Math.min(MOST_RUNS, Math.max(1, Math.round(runs))) })}
          />
        )}
      </Field>
      <Field label={say("simChannel")}>
        {(field) => (
          <select
            {...field}
            value={order.channel}
            onChange={(event) =>
              change({ ...order, channel: event.target.value === "voice" ? "voice" : "text" })
            }
          >
            <option value="text">{say("simText")}</option>
            <option value="voice">{say("simVoice")}</option>
          </select>
        )}
      </Field>
    </div>
  );
}

function Verdict({ done }: { readonly done: Simulated }): ReactNode {
  const say = useText("talk");
  return (
    <p className="row">
      <Badge tone="good">{say("passed", { count: done.passed })}</Badge>
      {done.failed > 0 ? <Badge tone="bad">{say("failed", { count: done.failed })}</Badge> : null}
      <Badge tone={done.passK === 1 ? "good" : "bad"}>
        {say("simPassK", { runs: done.runs, value: done.passK })}
      </Badge>
      {done.modelFailed === null ? null : <span>{say("modelFailed", { why: done.modelFailed })}</span>}
    </p>
  );
}

interface ResultsProps {
  readonly done: Simulated;
  readonly jump: (taskId: string) => void;
}

function Results({ done, jump }: ResultsProps): ReactNode {
  const say = useText("talk");
  const recording = done.recordingYaml;
  return (
    <>
      {done.results.map((each) => (
        <OneRun key={each.run} run={each} jump={jump} />
      ))}
      {recording === null ? null : (
        <Button kind="bare" onClick={() => download(recording, fileName(done.persona, ".recorded.yaml"))}>
          {say("simSaveRecording")}
        </Button>
      )}
    </>
  );
}

function OneRun({ run, jump }: { readonly run: Run; readonly jump: (taskId: string) => void }): ReactNode {
  const say = useText("talk");
  const { task, opinion } = run;
  return (
    <details open={!run.passed}>
      <summary>
        <Badge tone={run.passed ? "good" : "bad"}>{run.passed ? "✓" : "✗"}</Badge>{" "}
        {say("simOneRun", { run: run.run, turns: run.turns })}
      </summary>
      <ul className="findings">
        {run.failures.map((line) => (
          <li key={line}>{line}</li>
        ))}
      </ul>
      {opinion === null ? null : (
        <p className="talk-event">
          {say(opinion.reached ? "simReached" : "simMissed", { why: opinion.why })}
        </p>
      )}
      <div className="simulations-lines">
        {stepsOf(run).map((step, index) => {
          const place = `${run.run} ${index}`;
          if (step.refused !== null) {
            const told = say("simRefused", { what: step.text, code: step.refused });
            return (
              <p className="talk-event bad" key={place}>
                {told}
              </p>
            );
          }
          if (step.kind === "said") {
            return (
              <p className={`talk-said ${step.by}`} key={place}>
                {step.text}
              </p>
            );
          }
          return (
            <p className="talk-event" key={place}>
              {step.kind === "task" ? say("changed", { task: step.text }) : null}
              {step.kind === "memory" ? say("remembered", { names: step.text }) : null}
              {step.kind === "rejected" ? say("simRejected", { what: step.text }) : null}
            </p>
          );
        })}
      </div>
      {task === null ? null : (
        <Button onClick={() => jump(task.taskId)}>{say("simJump", { task: task.name })}</Button>
      )}
    </details>
  );
}
