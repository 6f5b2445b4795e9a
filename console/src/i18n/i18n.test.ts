import { describe, expect, it } from "vitest";
import { dictionaryOf, fill, LANGUAGES, type Language, languageOf } from ".";
import { english } from "./en";
import type { Message } from "./types";

describe("languages", () => {
  it("takes the first of the browser's that there is", () => {
    expect(languageOf(["de-AT", "es-419", "en"])).toBe("es");
  });

  it("speaks English where there is none", () => {
    expect(languageOf(["", "pt-BR"])).toBe("en");
  });

  it.each(Object.keys(LANGUAGES) as Language[])("has the same names to fill in: %s", async (language) => {
    const names = (message: Message): string[] =>
      (JSON.stringify(message).match(/\{\w+\}/g) ?? []).filter((name) => name !== "{count}").sort();
    const dictionary = await dictionaryOf(language);
    for (const [room, messages] of Object.entries(english)) {
      const translated = dictionary[room as keyof typeof english] as Readonly<Record<string, Message>>;
      for (const [key, message] of Object.entries(messages)) {
        expect([key, [...new Set(names(translated[key] ?? ""))]]).toEqual([
          key,
          [...new Set(names(message))],
        ]);
      }
    }
  });
});

describe("messages", () => {
  it("fills names in, numbers by the language", () => {
    expect(fill("{count} of {what}", "it", { count: 12345, what: "x" })).toBe("12.345 of x");
  });

  it("chooses the form by the number", () => {
    const drafts = { one: "{count} draft", other: "{count} drafts" };
    expect([1, 2, 0].map((count) => fill(drafts, "en", { count }))).toEqual([
      "1 draft",
      "2 drafts",
      "0 drafts",
    ]);
  });
});
