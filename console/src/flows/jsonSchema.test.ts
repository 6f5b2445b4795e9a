import { describe, expect, it } from "vitest";
import { emptyOf, labelOf, resolved, type SchemaNode, schemaAt, valuesOf } from "./jsonSchema";

const ROOT: SchemaNode = {
  properties: {
    tasks: { items: { $ref: "#/$defs/Task" }, type: "array", description: "all of them" },
    retention: { anyOf: [{ $ref: "#/$defs/Retention" }, { type: "null" }], description: "how long" },
  },
  $defs: {
    Task: {
      type: "object",
      required: ["type", "tools"],
      properties: {
        type: { enum: ["AIO", "HUM"], type: "string" },
        tools: { type: "array", items: { type: "string" } },
        conditions: { additionalProperties: { $ref: "#/$defs/Condition" }, type: "object" },
      },
    },
    Condition: { type: "object", properties: { when: { type: "string", description: "what holds" } } },
    Retention: { type: "object", properties: { days: { type: "number" } } },
  },
};

describe("the schema of a place", () => {
  it("is found through references, lists, open objects and alternatives", () => {
    expect(schemaAt(ROOT, ["tasks", 0, "type"])?.enum).toEqual(["AIO", "HUM"]);
    expect(schemaAt(ROOT, ["tasks", 3, "conditions", "any task", "when"])?.description).toBe("what holds");
    expect(schemaAt(ROOT, ["retention", "days"])?.type).toBe("number");
    expect(resolved(ROOT, ROOT.properties?.retention)?.description).toBe("how long");
  });

  it("is none for what the schema does not know", () => {
    expect(schemaAt(ROOT, ["nothing", "here"])).toBeUndefined();
  });

  it("lists values, fills in new properties, and names them", () => {
    expect(valuesOf({ type: "boolean" })).toEqual([true, false]);
    expect(valuesOf({ anyOf: [{ const: "card" }, { type: "boolean" }] })).toEqual(["card", true, false]);
    expect(emptyOf(ROOT, { $ref: "#/$defs/Task" })).toEqual({ type: "AIO", tools: [] });
    expect(labelOf("transitionParameters")).toBe("Transition parameters");
    expect(labelOf("_id")).toBe("Id");
    expect(labelOf("not_reachable")).toBe("Not reachable");
  });
});
