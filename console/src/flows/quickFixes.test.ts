import { describe, expect, it } from "vitest";
import { connected, newTask, taskById, type VersionDocument, withTask } from "./document";
import { nearest, quickFixes } from "./quickFixes";

function flow(): VersionDocument {
  const tasks = ["welcome", "order"].reduce((document, id) => withTask(document, newTask(id)), {
    draft: true,
    variables: [{ _id: "age", name: "age", type: "number", prompt: "age" }],
  } as VersionDocument);
  return { ...connected(tasks, "welcome", "order"), defaultLanguage: "it-IT", supportedLanguages: ["en-US"] };
}

function fixed(document: VersionDocument, code: string, pointer: string, number = 0): VersionDocument {
  const fix = quickFixes({ code, pointer, message: "" }, document)[number];
  if (fix === undefined) throw new Error(`no quick fix ${number} for ${code} at ${pointer}`);
  return fix.apply(document);
}

describe("quick fixes", () => {
  const misspelt = (): VersionDocument => connected(flow(), "order", "welcom");

  it("put the task that was meant in the place of an unknown one, or take it away, or make it", () => {
    const at = "/tasks/1/connectedTasks/0";
    expect(taskById(fixed(misspelt(), "unknown_task", at), "order")?.connectedTasks).toEqual(["welcome"]);
    expect(taskById(fixed(misspelt(), "unknown_task", at, 1), "order")?.connectedTasks).toEqual([]);
    expect(taskById(fixed(misspelt(), "unknown_task", at, 2), "welcom")?.type).toBe("AIO");
  });

  it("connect or delete a task that nobody gets to", () => {
    const document = withTask(flow(), newTask("lost"));
    expect(taskById(fixed(document, "unreachable_task", "/tasks/2"), "welcome")?.connectedTasks).toEqual([
      "order",
      "lost",
    ]);
    expect(fixed(document, "unreachable_task", "/tasks/2", 1).tasks?.length).toBe(2);
  });

  it("name apart what has the same id", () => {
    const twice: VersionDocument = { ...flow(), tasks: [...(flow().tasks ?? []), newTask("order")] };
    expect(fixed(twice, "duplicate_id", "/tasks/2/_id").tasks?.[2]?._id).toBe("order-2");
  });

  it("add what is missing with a value that says nothing", () => {
    expect(
      fixed({ ...flow(), firstTask: undefined } as VersionDocument, "missing_property", "/firstTask")
        .firstTask,
    ).toBe("welcome");
    expect(fixed(flow(), "missing_property", "/mcpServers").mcpServers).toEqual([]);
    expect(quickFixes({ code: "missing_property", pointer: "/globalPrompt", message: "" }, flow())).toEqual(
      [],
    );
  });

  it("mend the name in a condition", () => {
    const document: VersionDocument = {
      ...flow(),
      tasks: [{ ...newTask("welcome"), entryCondition: { when: "vars.aeg >= 18 and vars.age < 99" } }],
    };
    const mended = fixed(document, "condition_unknown_name", "/tasks/0/entryCondition/when");
    expect(taskById(mended, "welcome")?.entryCondition?.when).toBe("vars.age >= 18 and vars.age < 99");
  });

  it("let the default language be a supported one", () => {
    expect(fixed(flow(), "default_language_not_supported", "/defaultLanguage").supportedLanguages).toEqual([
      "en-US",
      "it-IT",
    ]);
  });

  it("are none for what needs a decision", () => {
    expect(quickFixes({ code: "dead_end", pointer: "/tasks/0", message: "" }, flow())).toEqual([]);
    expect(quickFixes({ code: "unknown_task", pointer: "/nowhere/3", message: "" }, flow())).toEqual([
      expect.objectContaining({ name: "removeMention" }),
    ]);
  });

  it("take nothing for alike that is not", () => {
    expect(nearest("order", ["ordre", "welcome"])).toBe("ordre");
    expect(nearest("order", ["zzzzzzzzzz"])).toBeUndefined();
  });

  it("find nothing to offer, and nothing to fail on, where a value has a wrong type", () => {
    const wrong: readonly object[] = [
      ...["variables", "tasks", "globalTasks"].flatMap((name) => [
        { [name]: "x" },
        { [name]: 5 },
        { [name]: [null] },
      ]),
      { defaultLanguage: 5 },
    ];
    const places = ["", "/variables", "/variables/0", "/variables/0/_id", "/tasks/0", "/tasks/0/name", "/x"];
    const codes = ["unknown_variable", "unknown_task", "duplicate_id", "unused_variable", "unreachable_task"];
    for (const part of wrong) {
      const document = { ...flow(), ...part } as VersionDocument;
      const findings = codes.flatMap((code) => places.map((pointer) => ({ code, pointer, message: "" })));
      for (const finding of findings) expect(() => quickFixes(finding, document)).not.toThrow();
      const said = { ...document, text: "vars.agee > 1" } as VersionDocument;
      const unknown = { code: "condition_unknown_name", pointer: "/text", message: "" };
      expect(() => quickFixes(unknown, said)).not.toThrow();
    }
  });
});
