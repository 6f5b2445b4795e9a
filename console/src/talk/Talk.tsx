import type { ReactNode } from "react";
import type { VersionDocument } from "../flows/document";

export interface TalkProps {
  readonly flowId: string;
  readonly document: VersionDocument;
  readonly active: (taskId: string | null) => void;
  readonly covered: (taskIds: ReadonlySet<string> | null) => void;
  readonly go: (pointer: string) => void;
}

export function Talk(_: TalkProps): ReactNode {
  return null;
}
