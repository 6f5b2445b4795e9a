/** A text, or its forms by number. Names in braces are filled in: `{count} drafts`. */
export type Message = string | { readonly one: string; readonly other: string };
export type Messages = Readonly<Record<string, Message>>;

/** The same keys as in English, none more and none less. */
export type Translation<English extends Messages> = {
  readonly [Key in keyof English]: English[Key] extends string
    ? string
    : { readonly one: string; readonly other: string };
};

type NamesIn<Text extends string> = Text extends `${string}{${infer Name}}${infer Rest}`
  ? Name | NamesIn<Rest>
  : never;

/** The names that a message wants filled in. */
export type NamesOf<Of extends Message> = Of extends string
  ? NamesIn<Of>
  : Of extends { readonly other: infer Other extends string }
    ? NamesIn<Other> | "count"
    : never;
