import type { Schemas } from "../api/client";
import { durationOf, percentOf } from "../operations/figures";

export type Estimate = Schemas["Estimate"];
export type TagReply = Schemas["TagReply"];
export type Side = Schemas["SplitShare"];

export const METRICS = ["refused", "stalled", "humanTransfers", "turns", "durationS"] as const;
export type Metric = (typeof METRICS)[number];

const SHARES: readonly string[] = ["refused", "stalled", "humanTransfers"];

/** An estimate in its own unit: a share as percent, seconds, or a number. */
export function shownValue(metric: string, value: number | null, language: string): string {
  if (value === null) return "–";
  if (metric === "durationS") return durationOf(value * 1000, language);
  if (metric === "turns") return value.toLocaleString(language, { maximumFractionDigits: 1 });
  return SHARES.includes(metric) || metric.startsWith("result:") ? percentOf(value, language) : String(value);
}

/** Where the ends and the middle of an interval lie, in percent of what all sides of a metric span. */
export function spanOf(
  estimates: readonly Estimate[],
  one: Estimate,
): { readonly from: number; readonly to: number; readonly at: number } | null {
  const ends = estimates.flatMap((each) => [each.low, each.high]).filter((each) => each !== null);
  if (one.low === null || one.high === null || one.value === null || ends.length === 0) return null;
  const [least, most] = [Math.min(0, ...ends), Math.max(...ends)];
  const scale = (value: number): number => (most === least ? 50 : ((value - least) / (most - least)) * 100);
  return { from: scale(one.low), to: scale(one.high), at: scale(one.value) };
}

/** Shares of a split in percent that add up to 100. */
export function sharesOf(sides: readonly { readonly weight: number }[]): number[] {
  const total = sides.reduce((sum, side) => sum + (side.weight || 0), 0);
  return sides.map((side) => (total === 0 ? 0 : ((side.weight || 0) / total) * 100));
}

/** Where a tag pointed before it pointed to where it does now; null where the history does not tell. */
export function beforeOf(changes: readonly Schemas["FlowChangeReply"][], tag: TagReply): string | null {
  const moves = changes.filter((change) => change.tag === tag.tag && change.action !== "rolled_back");
  const found = moves.find((move) => move.fromVersionId !== null && move.fromVersionId !== tag.versionId);
  return found?.fromVersionId ?? null;
}
