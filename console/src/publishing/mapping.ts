/** Lines `old task -> new task`; the numbers of those that are none. */
export function mappingOf(text: string): {
  readonly pairs: Record<string, string>;
  readonly wrong: readonly number[];
} {
  const pairs: Record<string, string> = {};
  const wrong: number[] = [];
  for (const [index, line] of text.split("\n").entries()) {
    if (line.trim() === "") continue;
    const [from, to, ...rest] = line.split("->").map((part) => part.trim());
    if (!from || !to || rest.length > 0) wrong.push(index + 1);
    else pairs[from] = to;
  }
  return { pairs, wrong };
}
