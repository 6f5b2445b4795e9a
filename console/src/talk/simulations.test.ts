import { describe, expect, it } from "vitest";
import {
  emptyPersona,
  fileName,
  joined,
  type Order,
  portions,
  type Run,
  type Simulated,
  stepsOf,
} from "./simulations";

const RUN: Run = {
  run: 1,
  passed: true,
  turns: 1,
  failures: [],
  opinion: null,
  task: { taskId: "t", name: "goodbye", pointer: "/tasks/1" },
  conversation: [{ user: "Hello.", agent: [{ say: "Hello, Ruth." }] }],
};

function done(...passed: readonly boolean[]): Simulated {
  const ok = passed.filter((each) => each).length;
  return {
    flowId: "f",
    versionId: "v",
    channel: "text",
    byModel: true,
    hasModel: true,
    modelFailed: null,
    runs: passed.length,
    left: 0,
    passed: ok,
    failed: passed.length - ok,
    passK: ok === passed.length && ok > 0 ? 1 : 0,
    results: passed.map((each, index) => ({ ...RUN, run: index + 1, passed: each })),
    persona: { name: "Ruth" },
    personaYaml: "name: Ruth\n",
    recordingYaml: passed.length === 0 ? null : `runs:\n${"- turns: []\n".repeat(passed.length)}`,
  };
}

describe("what is asked for", () => {
  const order: Order = { persona: {}, recording: null, runs: 3, channel: "text" };

  it("is one run a request with a model, all of them with a recording", () => {
    expect(portions(order)).toEqual([1, 1, 1]);
    expect(portions({ ...order, recording: "runs: []" })).toEqual([3]);
  });

  it("begins with a persona that has what every one has", () => {
    expect(emptyPersona("it-IT")).toMatchObject({
      language: "it-IT",
      goal: "",
      expect: { conversation: "active" },
    });
    expect(emptyPersona(undefined).language).toBe("en-US");
  });
});

describe("what comes of several requests", () => {
  it("is the first reply as it is", () => {
    expect(joined(null, done(true, false))).toEqual(done(true, false));
  });

  it("counts runs on, and pass^k is that all have passed", () => {
    const both = joined(done(true), done(true));
    expect([both.runs, both.passed, both.failed, both.passK]).toEqual([2, 2, 0, 1]);
    expect(both.results.map((each) => each.run)).toEqual([1, 2]);
    const third = joined(both, done(false));
    expect([third.runs, third.passed, third.failed, third.passK]).toEqual([3, 2, 1, 0]);
    expect(third.results.map((each) => each.passed)).toEqual([true, true, false]);
  });

  it("is one recording with the runs of all", () => {
    expect(joined(done(true), done(true, true)).recordingYaml).toBe(`runs:\n${"- turns: []\n".repeat(3)}`);
    expect(joined(done(true), { ...done(), modelFailed: "timeout" })).toMatchObject({
      recordingYaml: "runs:\n- turns: []\n",
      modelFailed: "timeout",
      passK: 1,
    });
  });
});

describe("a conversation", () => {
  it("is told step by step, with what the agent did and what was refused", () => {
    const conversation = [
      { agent: [{ say: "Good morning." }] },
      {
        user: "A present.",
        agent: [
          { change_task: "delivery", refused: "missing_variables" },
          { memory: [{ varId: "giftWrap", value: true }, { varId: "cart" }] },
        ],
      },
      { user: "Bye." },
    ];
    expect(stepsOf({ ...RUN, conversation })).toEqual([
      { by: "agent", text: "Good morning.", kind: "said", refused: null },
      { by: "user", text: "A present.", kind: "said", refused: null },
      { by: "agent", text: "delivery", kind: "task", refused: "missing_variables" },
      { by: "agent", text: "giftWrap, cart", kind: "memory", refused: null },
      { by: "user", text: "Bye.", kind: "said", refused: null },
    ]);
  });
});

describe("what a person has decided on", () => {
  it("is told as it went out, or as rejected", () => {
    const texts = [
      { say: "All of it.", decision: { outcome: "rejected", reason: "the tea" } },
      { say: "The tea.", decision: { outcome: "edited", text: "The wet tea." } },
    ];
    expect(stepsOf({ ...RUN, conversation: [{ agent: texts }] })).toEqual([
      { by: "agent", text: "All of it.", kind: "rejected", refused: null },
      { by: "agent", text: "The wet tea.", kind: "said", refused: null },
    ]);
  });
});

describe("a file", () => {
  it.each([
    ["Ruth, who wants a present", "ruth-who-wants-a-present.yaml"],
    ["Inés", "ines.yaml"],
    ["", "persona.yaml"],
  ])("is named after the persona: %s", (name, file) => {
    expect(fileName({ name }, ".yaml")).toBe(file);
  });
});
