import { createContext, useContext, useMemo } from "react";
import { english } from "./en";
import type { Message, NamesOf, Translation } from "./types";

type English = typeof english;
export type Room = keyof English;
export type Dictionary = { readonly [Name in Room]: Translation<English[Name]> };

export const LANGUAGES = { en: "English", it: "Italiano", es: "Español" } as const;
export type Language = keyof typeof LANGUAGES;

/** The first of the browser's languages that there is; English otherwise. */
export function languageOf(wanted: readonly string[]): Language {
  for (const each of wanted) {
    const code = each.slice(0, 2).toLowerCase();
    if (code in LANGUAGES) return code as Language;
  }
  return "en";
}

/** Texts are loaded with their language; English is always there. */
export async function dictionaryOf(language: Language): Promise<Dictionary> {
  if (language === "it") return (await import("./it")).italian;
  if (language === "es") return (await import("./es")).spanish;
  return english;
}

export interface Speech {
  readonly language: Language;
  readonly dictionary: Dictionary;
  readonly speak: (language: Language) => void;
}

export const SpeechContext = createContext<Speech>({
  language: "en",
  dictionary: english,
  speak: () => undefined,
});

export function useSpeech(): Speech {
  return useContext(SpeechContext);
}

type Filled<Of extends Message> = [NamesOf<Of>] extends [never]
  ? []
  : [Readonly<Record<NamesOf<Of>, string | number>>];
export type Say<Name extends Room> = <Key extends keyof English[Name] & string>(
  key: Key,
  ...values: English[Name][Key] extends Message ? Filled<English[Name][Key]> : []
) => string;

/** The text of a message in a language, with its names filled in and its form by `count`. */
export function fill(
  message: Message,
  language: Language,
  values: Readonly<Record<string, string | number>> = {},
): string {
  const number = Number(values.count);
  const form =
    typeof message === "string"
      ? message
      : message[new Intl.PluralRules(language).select(number) === "one" ? "one" : "other"];
  return form.replace(/\{(\w+)\}/g, (whole, name: string) => {
    const value = values[name];
    return typeof value === "number" ? value.toLocaleString(language) : (value ?? whole);
  });
}

/** What a room says: `say("title")`, `say("drafts", { count: 3 })`. A key or a name that is missing does not compile. */
export function useText<Name extends Room>(room: Name): Say<Name> {
  const { language, dictionary } = useSpeech();
  return useMemo(() => {
    const messages = dictionary[room] as Readonly<Record<string, Message>>;
    return (key, ...values) => fill(messages[key] ?? key, language, values[0]);
  }, [language, dictionary, room]);
}

/** A moment as people read it, in their time zone and as their region writes it: `2026-01-15T09:30:00Z` → `15 Jan 2026,
 * 10:30`. */
export function useMoment(style = MINUTES): (moment: string | null | undefined) => string {
  const { language } = useSpeech();
  return useMemo(() => {
    const region = navigator.languages.find((each) => each.startsWith(language)) ?? language;
    const known = `${region} ${style.dateStyle} ${style.timeStyle}`;
    const format = FORMATS.get(known) ?? new Intl.DateTimeFormat(region, style);
    FORMATS.set(known, format);
    return (moment) => (moment ? format.format(new Date(moment)) : "–");
  }, [language, style]);
}

/** Making one takes a quarter of a millisecond, and a journal has a moment in each of its entries. */
const FORMATS = new Map<string, Intl.DateTimeFormat>();
const MINUTES: Intl.DateTimeFormatOptions = { dateStyle: "medium", timeStyle: "short" };
/** To the second, with the day and without. */
export const SECONDS: Intl.DateTimeFormatOptions = { dateStyle: "medium", timeStyle: "medium" };
export const OF_THE_DAY: Intl.DateTimeFormatOptions = { timeStyle: "medium" };
