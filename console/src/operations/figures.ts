/** Milliseconds as people read them: `1.8 ms`, `420 ms`, `2.5 s`, `3 min`. */
export function durationOf(ms: number, language: string): string {
  const number = (value: number, digits: number): string =>
    value.toLocaleString(language, { maximumFractionDigits: digits });
  if (ms < 10) return `${number(ms, 1)} ms`;
  if (ms < 1_000) return `${number(ms, 0)} ms`;
  if (ms < 120_000) return `${number(ms / 1_000, 1)} s`;
  if (ms < 7_200_000) return `${number(ms / 60_000, 0)} min`;
  return `${number(ms / 3_600_000, 1)} h`;
}

/** US dollars; small sums with as many digits as they need. A dash where the price is not known. */
export function costOf(usd: number | null, language: string): string {
  if (usd === null) return "–";
  const digits = usd === 0 || usd >= 1 ? 2 : 5;
  return usd.toLocaleString(language, {
    style: "currency",
    currency: "USD",
    minimumFractionDigits: 2,
    maximumFractionDigits: digits,
  });
}

/** A share as percent, `0.153` → `15.3 %`. */
export function percentOf(share: number, language: string, digits = 1): string {
  return share.toLocaleString(language, { style: "percent", maximumFractionDigits: digits });
}

/** All of what is counted by reasons: `{"busy": 2, "draining": 1}` → 3. */
export function totalOf(counts: Readonly<Record<string, number>> | undefined): number {
  return Object.values(counts ?? {}).reduce((total, each) => total + each, 0);
}
