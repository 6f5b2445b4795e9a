import type { publishing as english } from "../en/publishing";
import type { Translation } from "../types";

export const publishing: Translation<typeof english> = {
  title: "Pubblicazione",
};
