/** What puts a finding right at once: the common ones, each as a change of the document. Pure. */
import type { Schemas } from "../api/client";
import {
  connected,
  freeName,
  newTask,
  segmentsOf,
  tasksOf,
  type VersionDocument,
  valueAt,
  withoutTasks,
  withTask,
  withValueAt,
} from "./document";

export type Finding = Schemas["FindingReply"];
export type FixName =
  | "useInstead"
  | "removeMention"
  | "createTask"
  | "connectFromFirst"
  | "deleteTask"
  | "renameApart"
  | "addProperty"
  | "removeProperty"
  | "addLanguage"
  | "addChannel"
  | "deleteVariable";

export interface QuickFix {
  readonly name: FixName;
  /** What the fix is about: a name, an id, a language. */
  readonly about: string;
  readonly apply: (document: VersionDocument) => VersionDocument;
}

type Fixer = (finding: Finding, document: VersionDocument) => readonly QuickFix[];

/** How many single characters lie between two texts (Levenshtein). */
function distance(one: string, other: string): number {
  let row = Array.from({ length: other.length + 1 }, (_, index) => index);
  for (let i = 1; i <= one.length; i += 1) {
    const next = [i];
    for (let j = 1; j <= other.length; j += 1) {
      const kept = (row[j - 1] ?? 0) + (one[i - 1] === other[j - 1] ? 0 : 1);
      next.push(Math.min(kept, (row[j] ?? 0) + 1, (next[j - 1] ?? 0) + 1));
    }
    row = next;
  }
  return row[other.length] ?? 0;
}

/** The most alike of `known`, if it is alike at all. */
export function nearest(name: string, known: readonly string[]): string | undefined {
  const ranked = known
    .map((each) => ({ each, far: distance(name.toLowerCase(), each.toLowerCase()) }))
    .sort((a, b) => a.far - b.far);
  const best = ranked[0];
  return best !== undefined && best.far <= Math.max(2, Math.floor(name.length / 2)) ? best.each : undefined;
}

function unknownName(known: (document: VersionDocument) => readonly string[]): Fixer {
  return ({ pointer }, document) => {
    const found = valueAt(document, pointer);
    if (typeof found !== "string") return [];
    const near = nearest(found, known(document));
    return near === undefined
      ? []
      : [{ name: "useInstead", about: near, apply: (now) => withValueAt(now, pointer, near) }];
  };
}

const mentionGoes: Fixer = ({ pointer }, document) => {
  const place = segmentsOf(pointer);
  if (!/^\d+$/.test(place.at(-1) ?? "")) return [];
  const about = String(valueAt(document, pointer));
  return [{ name: "removeMention", about, apply: (now) => withValueAt(now, pointer, undefined) }];
};

const taskIsMade: Fixer = ({ pointer }, document) => {
  const id = valueAt(document, pointer);
  if (typeof id !== "string" || id === "") return [];
  return [{ name: "createTask", about: id, apply: (now) => withTask(now, newTask(id)) }];
};

const taskIds = (document: VersionDocument): readonly string[] => tasksOf(document).map((task) => task._id);
const variableIds = (document: VersionDocument): readonly string[] =>
  Array.isArray(document.variables) ? document.variables.map((each) => each?._id ?? "") : [];

const unreachableTask: Fixer = ({ pointer }, document) => {
  const id = document.tasks?.[Number(segmentsOf(pointer)[1])]?._id;
  const first = document.firstTask;
  if (id === undefined) return [];
  const ways: QuickFix[] = [];
  if (first !== undefined && first !== id && taskIds(document).includes(first)) {
    ways.push({ name: "connectFromFirst", about: id, apply: (now) => connected(now, first, id) });
  }
  return [...ways, { name: "deleteTask", about: id, apply: (now) => withoutTasks(now, new Set([id])) }];
};

const renamedApart: Fixer = ({ pointer }, document) => {
  const found = valueAt(document, pointer);
  const collection = segmentsOf(pointer)[0];
  const all = collection === undefined ? undefined : document[collection as keyof VersionDocument];
  if (typeof found !== "string" || !Array.isArray(all)) return [];
  const key = segmentsOf(pointer).at(-1) ?? "_id";
  const free = freeName(
    found,
    new Set(all.map((each) => String((each as Record<string, unknown> | null)?.[key]))),
  );
  return [{ name: "renameApart", about: free, apply: (now) => withValueAt(now, pointer, free) }];
};

const NEUTRAL: Readonly<Record<string, unknown>> = {
  transitionParameters: [],
  enabledCheckpoints: [],
  connectedTasks: [],
  closureConfig: { multiContact: false },
  mediaConfig: { audio: { presetId: "default" }, text: {} },
  routingParameters: { timeout: 60 },
  channels: ["phone", "chat"],
  mandatoryChannels: [],
  variables: [],
  uiMetadata: {},
  mcpServers: [],
  aiHelpers: [],
  tasks: [],
  checkpoints: [],
  reasonsOfContact: [],
  results: [],
  schemaVersion: "1.0.0",
  apiVersion: "v1",
  defaultLanguage: "en-US",
  supportedLanguages: ["en-US"],
  systemPromptsLanguage: "en-US",
};

const propertyIsAdded: Fixer = ({ pointer }, document) => {
  const name = segmentsOf(pointer).at(-1) ?? "";
  const value = name === "firstTask" ? taskIds(document)[0] : NEUTRAL[name];
  return value === undefined
    ? []
    : [{ name: "addProperty", about: name, apply: (now) => withValueAt(now, pointer, value) }];
};

const propertyGoes: Fixer = ({ pointer }) => {
  const about = segmentsOf(pointer).at(-1) ?? "";
  return about === ""
    ? []
    : [{ name: "removeProperty", about, apply: (now) => withValueAt(now, pointer, undefined) }];
};

const languageIsAdded: Fixer = (_, document) => {
  const language = document.defaultLanguage;
  if (language === undefined) return [];
  const apply = (now: VersionDocument): VersionDocument => ({
    ...now,
    supportedLanguages: [...(now.supportedLanguages ?? []), language],
  });
  return [{ name: "addLanguage", about: language, apply }];
};

const channelIsAdded: Fixer = ({ pointer }, document) => {
  const channel = valueAt(document, pointer) as NonNullable<VersionDocument["channels"]>[number] | undefined;
  if (typeof channel !== "string") return [];
  return [
    {
      name: "addChannel",
      about: channel,
      apply: (now) => ({ ...now, channels: [...(now.channels ?? []), channel] }),
    },
  ];
};

const variableGoes: Fixer = ({ pointer }, document) => {
  const at = `/${segmentsOf(pointer).slice(0, 2).join("/")}`;
  const variable = valueAt(document, at) as { readonly _id?: string } | undefined;
  return variable?._id === undefined
    ? []
    : [{ name: "deleteVariable", about: variable._id, apply: (now) => withValueAt(now, at, undefined) }];
};

/** In a condition's text the unknown name is one word of it. */
const nameInCondition: Fixer = ({ pointer }, document) => {
  const text = valueAt(document, pointer);
  if (typeof text !== "string") return [];
  const known = variableIds(document);
  for (const [, name] of text.matchAll(/\bvars\.([A-Za-z_][A-Za-z0-9_]*)/g)) {
    if (name === undefined || known.includes(name)) continue;
    const near = nearest(name, known);
    if (near === undefined) continue;
    const put = text.replaceAll(new RegExp(`\\bvars\\.${name}\\b`, "g"), `vars.${near}`);
    return [{ name: "useInstead", about: near, apply: (now) => withValueAt(now, pointer, put) }];
  }
  return [];
};

const FIXERS: Readonly<Record<string, readonly Fixer[]>> = {
  unknown_task: [unknownName(taskIds), mentionGoes, taskIsMade],
  unknown_variable: [unknownName(variableIds), mentionGoes],
  unknown_checkpoint: [mentionGoes],
  unreachable_task: [unreachableTask],
  duplicate_id: [renamedApart],
  duplicate_name: [renamedApart],
  missing_property: [propertyIsAdded],
  unknown_property: [propertyGoes],
  default_language_not_supported: [languageIsAdded],
  mandatory_channel_not_in_channels: [channelIsAdded, mentionGoes],
  unused_variable: [variableGoes],
  condition_unknown_name: [nameInCondition],
};

export function quickFixes(finding: Finding, document: VersionDocument): readonly QuickFix[] {
  return (FIXERS[finding.code] ?? []).flatMap((fixer) => fixer(finding, document));
}
