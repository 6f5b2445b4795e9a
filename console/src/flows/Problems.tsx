import { useQuery } from "@tanstack/react-query";
import { memo, type ReactNode, useId, useState } from "react";
import { type Language, useSpeech, useText } from "../i18n";
import { Badge, Button, Literals } from "../shell/kit";
import { ErrorState } from "../shell/states";
import type { VersionDocument } from "./document";
import { type QuickFix, quickFixes } from "./quickFixes";
import type { Problem, Verdict } from "./verdict";

interface Explained {
  readonly title: string;
  readonly why: string;
  readonly advice: string;
  readonly example: string;
  /** What the title, the reason and the advice are in; examples are in English. */
  readonly language: string;
}

/** The linter's own table, made at the build from the one in the service, in one language. */
async function explanations(language: Language): Promise<Readonly<Record<string, Explained>>> {
  if (language === "it") return (await import("../../generated/codes.it.json")).default;
  if (language === "es") return (await import("../../generated/codes.es.json")).default;
  return (await import("../../generated/codes.en.json")).default;
}

function useExplanations(): {
  readonly known: Readonly<Record<string, Explained>>;
  readonly pending: boolean;
} {
  const { language } = useSpeech();
  const { data, isPending } = useQuery({
    queryKey: ["codes", language],
    queryFn: () => explanations(language),
    staleTime: Number.POSITIVE_INFINITY,
  });
  return { known: data ?? {}, pending: isPending };
}

const FIX_TEXTS = {
  useInstead: "fixUseInstead",
  removeMention: "fixRemoveMention",
  createTask: "fixCreateTask",
  connectFromFirst: "fixConnectFromFirst",
  deleteTask: "fixDeleteTask",
  renameApart: "fixRenameApart",
  addProperty: "fixAddProperty",
  removeProperty: "fixRemoveProperty",
  addLanguage: "fixAddLanguage",
  addChannel: "fixAddChannel",
  deleteVariable: "fixDeleteVariable",
} as const;

interface ProblemsProps {
  readonly verdict: Verdict;
  readonly document: VersionDocument;
  readonly go: (pointer: string) => void;
  readonly fix: (apply: QuickFix["apply"]) => void;
  readonly readOnly: boolean;
}

/** What is wrong, worst first; each leads to its place, is explained, and is put right where that can be done at once. */
export const Problems = memo(function Problems(props: ProblemsProps): ReactNode {
  const { verdict, document, go, fix, readOnly } = props;
  const say = useText("flows");
  const heading = useId();
  const errors = verdict.problems.filter((each) => each.severity === "error").length;
  const warnings = verdict.problems.length - errors;
  return (
    <section id="problems" className="panel problems" aria-labelledby={heading} tabIndex={-1}>
      <header className="panel-head">
        <h2 id={heading}>{say("problems")}</h2>
        <span className="row">
          <span className="row" aria-live="polite">
            {errors > 0 ? <Badge tone="bad">{say("errors", { count: errors })}</Badge> : null}
            {warnings > 0 ? <Badge tone="warn">{say("warnings", { count: warnings })}</Badge> : null}
            {verdict.known && verdict.problems.length === 0 && verdict.error === null ? (
              <Badge tone="good">{say("noProblems")}</Badge>
            ) : null}
          </span>
          {verdict.checking ? <span className="quiet">{say("checking")}</span> : null}
        </span>
      </header>
      <ErrorState error={verdict.error} />
      <ul className="problem-list">
        {verdict.problems.map((problem, number) => (
          <Row
            // biome-ignore lint/suspicious/noArrayIndexKey: two findings may be the same in all they say
            key={`${problem.pointer} ${problem.code} ${number}`}
            problem={problem}
            fixes={readOnly ? [] : quickFixes(problem, document)}
            go={go}
            fix={(each) => fix(each.apply)}
          />
        ))}
      </ul>
    </section>
  );
});

interface RowProps {
  readonly problem: Problem;
  readonly fixes: readonly QuickFix[];
  readonly go: (pointer: string) => void;
  readonly fix: (fix: QuickFix) => void;
}

function Row({ problem, fixes, go, fix }: RowProps): ReactNode {
  const say = useText("flows");
  const [open, setOpen] = useState(false);
  return (
    <li className={problem.severity}>
      <button type="button" className="problem-text" onClick={() => go(problem.pointer)}>
        <span className={`node-mark ${problem.severity}`} aria-hidden="true">
          !
        </span>
        <span>
          <span className="visually-hidden">{say(problem.severity === "error" ? "error" : "warning")}: </span>
          <Message problem={problem} />
          {problem.pointer === "" ? null : <code className="quiet"> {problem.pointer}</code>}
        </span>
      </button>
      <span className="row problem-actions">
        {fixes.map((each) => (
          <Button key={`${each.name} ${each.about}`} kind="bare" className="fix" onClick={() => fix(each)}>
            {say(FIX_TEXTS[each.name], { about: each.about })}
          </Button>
        ))}
        <Button kind="bare" aria-expanded={open} onClick={() => setOpen(!open)}>
          {say("explain")}
        </Button>
      </span>
      {open ? <Explanation code={problem.code} /> : null}
    </li>
  );
}

/** What the service says of it is English: for other readers the title of its code stands before, in theirs. */
function Message({ problem }: { readonly problem: Problem }): ReactNode {
  const { language } = useSpeech();
  return language === "en" ? <Literals text={problem.message} /> : <Titled problem={problem} />;
}

function Titled({ problem }: { readonly problem: Problem }): ReactNode {
  const found = useExplanations().known[problem.code];
  return (
    <>
      {found === undefined || found.language === "en" ? null : (
        <>
          <Literals text={found.title} />
          {": "}
        </>
      )}
      <span lang="en">
        <Literals text={problem.message} />
      </span>
    </>
  );
}

function Explanation({ code }: { readonly code: string }): ReactNode {
  const say = useText("flows");
  const { known, pending } = useExplanations();
  const found = known[code];
  return (
    <div className="explanation">
      <code>{code}</code>
      {found === undefined ? (
        <p className="quiet">{pending ? "…" : say("unexplained")}</p>
      ) : (
        <div lang={found.language}>
          <p>
            <strong>
              <Literals text={found.title} />.
            </strong>{" "}
            <Literals text={found.why} />
          </p>
          <p>
            <Literals text={found.advice} />
          </p>
          <p className="quiet" lang="en">
            <Literals text={found.example} />
          </p>
        </div>
      )}
    </div>
  );
}
