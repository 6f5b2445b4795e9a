import type { conversations as english } from "../en/conversations";
import type { Translation } from "../types";

export const conversations: Translation<typeof english> = {
  title: "Conversaciones",
};
