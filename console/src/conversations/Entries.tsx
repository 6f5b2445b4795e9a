import { useQuery } from "@tanstack/react-query";
import { memo, type ReactNode, type RefCallback, useCallback, useEffect, useRef, useState } from "react";
import { OF_THE_DAY, SECONDS, useMoment, useText } from "../i18n";
import { useSeen } from "../shell/seen";
import { momentQuery } from "./queries";
import { type HumanOutcome, type Step, shown } from "./timeline";

const SIGNS: Readonly<Record<Step["kind"], string>> = {
  started: "▶",
  said: "“",
  entered: "→",
  refused: "✕",
  values: "=",
  human: "☺",
  ended: "■",
  forked: "⑂",
  moved: "⇢",
  other: "·",
};

export interface Selecting {
  readonly steps: readonly Step[];
  readonly seq: number;
  readonly select: (seq: number) => void;
}

/** So many entries are drawn together: what comes live draws the last of them anew, and all others stay. */
const PART = 50;

export function Entries({ id, steps, seq, select }: Selecting & { readonly id: string }): ReactNode {
  const say = useText("conversations");
  const [refusals, setRefusals] = useState(false);
  const refused = steps.filter((step) => step.kind === "refused");
  const shown = refusals ? refused : steps;
  const latest = steps.at(-1)?.seq ?? 0;
  const known = useRef(latest);
  // The chosen one stays in view while what is above it grows, until somebody looks at others.
  const frame = useRef<HTMLDivElement>(null);
  const held = useRef(true);
  const height = useRef(0);
  const growing = useCallback<RefCallback<HTMLElement>>((list) => {
    const watch = new ResizeObserver(() => {
      height.current = frame.current?.scrollHeight ?? 0;
      if (held.current) bringInView(frame.current);
    });
    if (list !== null) watch.observe(list);
    return () => watch.disconnect();
  }, []);
  // biome-ignore lint/correctness/useExhaustiveDependencies: it is in view in the list of refusals too
  useEffect(() => {
    const came = latest > known.current;
    known.current = latest;
    if (came && !(held.current && seq === latest)) return;
    held.current = true;
    bringInView(frame.current);
  }, [seq, latest, refusals]);
  return (
    <section className="entries" aria-label={say("timeline")}>
      {refused.length === 0 ? null : (
        <label className="choice">
          <input type="checkbox" checked={refusals} onChange={(event) => setRefusals(event.target.checked)} />
          {say("onlyRefusals", { count: refused.length })}
        </label>
      )}
      <a className="skip" href="#moment">
        {say("skipEntries")}
      </a>
      <div
        className="timeline"
        ref={frame}
        onScroll={({ currentTarget: { scrollHeight } }) => {
          // What has grown just now is not where it will be.
          if (scrollHeight === height.current) held.current = outOfView(frame.current) === 0;
        }}
      >
        {/* What comes is told to whoever hears the page. Shown otherwise it is another list, of which nothing has come. */}
        <ol key={String(refusals)} ref={growing} aria-live="polite" aria-relevant="additions">
          {Array.from({ length: Math.ceil(shown.length / PART) }, (_, number) => {
            const part = shown.slice(number * PART, (number + 1) * PART);
            return (
              <Part
                // biome-ignore lint/suspicious/noArrayIndexKey: entries are added at the end alone
                key={number}
                id={id}
                steps={part}
                before={shown[number * PART - 1]}
                seq={part.some((step) => step.seq === seq) ? seq : 0}
                select={select}
              />
            );
          })}
        </ol>
      </div>
    </section>
  );
}

/** How far the list has to scroll for the chosen entry, in pixels. */
function outOfView(frame: HTMLElement | null): number {
  const step = frame?.querySelector("[aria-current]")?.closest("li");
  if (frame == null || step == null) return 0;
  const above = step.offsetTop - frame.scrollTop;
  const below = above + step.offsetHeight - frame.clientHeight;
  return above < 0 ? above : Math.max(0, below);
}

/** Only the list itself scrolls, never the page. */
function bringInView(frame: HTMLElement | null): void {
  if (frame !== null) frame.scrollTop += outOfView(frame);
}

interface PartProps extends Selecting {
  readonly id: string;
  readonly before: Step | undefined;
}

const Part = memo(function Part({ id, steps, before, seq, select }: PartProps): ReactNode {
  return steps.map((step, index) => (
    <li key={step.seq} className={`step ${step.kind}`}>
      <span className="bead" aria-hidden="true">
        {SIGNS[step.kind]}
      </span>
      <StepButton
        id={id}
        step={step}
        dated={(index === 0 ? before : steps[index - 1])?.day !== step.day}
        current={step.seq === seq}
        select={select}
      />
    </li>
  ));
}, samePart);

function samePart(one: PartProps, other: PartProps): boolean {
  const same = one.steps.length === other.steps.length && one.seq === other.seq;
  return same && one.steps.every((step, index) => step === other.steps[index]);
}

interface OfStep {
  readonly id: string;
  readonly step: Step;
}

interface StepButtonProps extends OfStep {
  /** Whether it is the first of its day. */
  readonly dated: boolean;
  readonly current: boolean;
  readonly select: (seq: number) => void;
}

const StepButton = memo(function StepButton(props: StepButtonProps): ReactNode {
  const { id, step, dated, current, select } = props;
  const say = useText("conversations");
  const moment = useMoment(dated ? SECONDS : OF_THE_DAY);
  return (
    <button type="button" aria-current={current ? "step" : undefined} onClick={() => select(step.seq)}>
      <span className="what">
        <strong>{useTitle(step)}</strong>
        <span className="when">
          {step.seq} · {moment(step.at)}
        </span>
      </span>
      {step.kind === "said" ? <span className="bubble">{step.subject}</span> : null}
      {step.kind === "refused" ? <Reason id={id} step={step} /> : null}
      {step.rationale === null ? null : <span className="rationale">{step.rationale}</span>}
      {step.values.map((value) => (
        <span key={value.id} className="value">
          <code>{value.id}</code> = {shown(value.value)}{" "}
          {value.by === null ? null : <small className="quiet">{say("from_by", { who: value.by })}</small>}
        </span>
      ))}
    </button>
  );
});

function useTitle(step: Step): string {
  const say = useText("conversations");
  const subject = step.subject ?? "";
  switch (step.kind) {
    case "started":
      return say("stepStarted", { task: step.task ?? "" });
    case "said":
      return step.speaker === "user" ? say("stepUser") : say("stepAgent");
    case "entered":
      return step.op === "advance"
        ? say("stepAdvanced", { task: step.task ?? "" })
        : say("stepEntered", { task: step.task ?? subject });
    case "refused":
      return say("stepRefused", { task: subject });
    case "values":
      return step.op === "extraction" ? say("stepHeard") : say("stepTool", { who: step.by });
    case "human":
      return say("stepHuman", { outcome: say(`did_${subject as HumanOutcome}`) });
    case "ended":
      return say("stepEnded");
    case "forked":
      return say("stepForked");
    case "moved":
      return say("stepMoved");
    case "other":
      return step.op;
  }
}

/** The reason of a refusal as the agent was told: it stands in the reply of then, which is asked for once it is seen. A
 * journal may have a thousand. */
function Reason({ id, step }: OfStep): ReactNode {
  const [seen, watched] = useSeen();
  return (
    <span className="reason" ref={watched}>
      {seen ? <ToldReason id={id} step={step} /> : step.code}
    </span>
  );
}

function ToldReason({ id, step }: OfStep): ReactNode {
  const moment = useQuery(momentQuery(id, step.seq));
  return reasonOf(moment.data?.reply) ?? step.code;
}

function reasonOf(reply: string | null | undefined): string | null {
  if (!reply) return null;
  try {
    return (JSON.parse(reply) as { reason?: string }).reason ?? null;
  } catch {
    return null;
  }
}
