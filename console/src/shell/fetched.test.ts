import { afterEach, describe, expect, it, vi } from "vitest";
import { fetched, Outdated } from "./fetched";

const AWAY = new Error("away");

describe("a part that cannot be fetched", () => {
  afterEach(() => {
    vi.unstubAllGlobals();
    vi.useRealTimers();
  });

  function told(...statuses: number[]): void {
    const answers = statuses.map((status) => new Response("", { status }));
    vi.stubGlobal("fetch", () => Promise.resolve(answers.shift()));
  }

  it("is waited for while a proxy answers for a service that is away", async () => {
    vi.useFakeTimers();
    told(502, 200);
    const part = vi.fn().mockRejectedValueOnce(AWAY).mockRejectedValueOnce(AWAY).mockResolvedValue("there");
    const shown = fetched(part);
    await vi.advanceTimersByTimeAsync(1_000);
    expect(await shown).toBe("there");
  });

  it("is of another release where the service answers", async () => {
    told(200);
    await expect(fetched(() => Promise.reject(AWAY))).rejects.toBeInstanceOf(Outdated);
  });
});
