import type { FlowRow, Version } from "../flows/queries";

export interface OfFlow {
  readonly flow: FlowRow;
  /** The newest first. */
  readonly versions: readonly Version[];
}
