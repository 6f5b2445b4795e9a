import { describe, expect, it } from "vitest";
import { beforeOf, sharesOf, shownValue, spanOf, type TagReply } from "./outcomes";

const TAG: TagReply = {
  tag: "prod",
  versionId: "v2",
  createdBy: "ada",
  createdAt: "2026-01-15T09:30:00Z",
  split: null,
  guard: null,
  rolledBack: null,
};

function change(action: string, tag: string | null, versionId: string, fromVersionId: string | null) {
  const at = "2026-01-15T09:30:00Z";
  return { at, by: "ada", action, tag, versionId, fromVersionId, split: null, metric: null, draft: null };
}

describe("outcomes", () => {
  it("are shown in the unit of their metric", () => {
    expect([
      shownValue("refused", 0.125, "en"),
      shownValue("durationS", 95, "en"),
      shownValue("turns", 7.25, "en"),
      shownValue("refused", null, "en"),
    ]).toEqual(["12.5%", "95 s", "7.3", "–"]);
  });

  it("lie on one scale for all sides", () => {
    const [one, other] = [
      { value: 0.2, low: 0.1, high: 0.3, n: 50 },
      { value: 0.4, low: 0.3, high: 0.5, n: 50 },
    ];
    const round = (span: ReturnType<typeof spanOf>) =>
      span && [span.from, span.at, span.to].map((each) => Math.round(each));
    expect(round(spanOf([one, other], one))).toEqual([20, 40, 60]);
    expect(round(spanOf([one, other], other))).toEqual([60, 80, 100]);
  });

  it("have shares that add up", () => {
    expect(sharesOf([{ weight: 3 }, { weight: 1 }])).toEqual([75, 25]);
    expect(sharesOf([{ weight: 0 }])).toEqual([0]);
  });
});

describe("a rollback by hand", () => {
  it("goes where the tag was before", () => {
    const changes = [
      change("tag_moved", "latest", "v3", "v2"),
      change("tag_moved", "prod", "v2", "v1"),
      change("version_saved", null, "v2", "v1"),
    ];
    expect(beforeOf(changes, TAG)).toBe("v1");
  });

  it("is not offered where the history does not tell", () => {
    expect(beforeOf([change("tag_moved", "prod", "v2", null)], TAG)).toBeNull();
  });

  it("looks past a split whose base is where the tag points", () => {
    const changes = [change("tag_split", "prod", "v2", "v2"), change("tag_moved", "prod", "v2", "v1")];
    expect(beforeOf(changes, TAG)).toBe("v1");
  });
});
