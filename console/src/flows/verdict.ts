/** What is wrong with a document, while it is typed. */
import { useQuery } from "@tanstack/react-query";
import { useEffect, useMemo, useState } from "react";
import { client, reply, type Schemas } from "../api/client";
import { sendable, taskAt, type VersionDocument } from "./document";
import type { Mark } from "./graph";
import type { Finding } from "./quickFixes";

export interface Problem extends Finding {
  readonly severity: Mark;
}

const QUIET_MS = 350;

/** A value once it has not changed for a third of a second. */
export function useQuiet<T>(value: T): T {
  const [quiet, setQuiet] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setQuiet(value), QUIET_MS);
    return () => clearTimeout(timer);
  }, [value]);
  return quiet;
}

export interface Verdict {
  readonly problems: readonly Problem[];
  /** Whether it is there: of the document as it stands, or as it was a moment ago. */
  readonly known: boolean;
  /** Not yet of the document as it stands. */
  readonly checking: boolean;
  readonly error: Error | null;
}

const NUMBERS = new WeakMap<VersionDocument, number>();
let documents = 0;

/** In place of a document as the key of a query, which would be written out at every look at it. */
function numberOf(document: VersionDocument): number {
  const number = NUMBERS.get(document) ?? ++documents;
  NUMBERS.set(document, number);
  return number;
}

/** What publishing this document would say. Asked once nothing was typed for a third of a second. */
export function useVerdict(
  flowId: string,
  document: VersionDocument,
  brokenText: string | null,
  wanted: boolean,
): Verdict {
  const quiet = useQuiet(document);
  const checked = useQuery({
    queryKey: ["flows", flowId, "verdict", numberOf(quiet)],
    queryFn: async ({ signal }) => {
      const params = { path: { flow_id: flowId } };
      const body = sendable(quiet, false);
      return await reply(client.POST("/v1/flows/{flow_id}/versions/validate", { params, body, signal }));
    },
    enabled: wanted,
    placeholderData: (before) => before,
    staleTime: Number.POSITIVE_INFINITY,
    gcTime: 60_000,
  });
  const { data } = checked;
  const problems = useMemo(() => problemsOf(data, brokenText), [data, brokenText]);
  const checking = quiet !== document || checked.isFetching;
  const { error } = checked;
  const known = data !== undefined;
  return useMemo(() => ({ problems, known, checking, error }), [problems, known, checking, error]);
}

function problemsOf(verdict: Schemas["Verdict"] | undefined, brokenText: string | null): readonly Problem[] {
  const found: Problem[] = [];
  if (brokenText !== null) {
    found.push({ pointer: "", code: "json_invalid", message: whyBroken(brokenText), severity: "error" });
  }
  for (const each of verdict?.errors ?? []) found.push({ ...each, severity: "error" });
  for (const each of verdict?.warnings ?? []) found.push({ ...each, severity: "warning" });
  return found;
}

function whyBroken(text: string): string {
  try {
    JSON.parse(text);
    return "{…}";
  } catch (error) {
    return error instanceof Error ? error.message : String(error);
  }
}

/** The worst that is said of each task. */
export function marksOf(problems: readonly Problem[], document: VersionDocument): ReadonlyMap<string, Mark> {
  const marks = new Map<string, Mark>();
  for (const problem of problems) {
    const id = taskAt(document, problem.pointer);
    if (id !== null && marks.get(id) !== "error") marks.set(id, problem.severity);
  }
  return marks;
}
