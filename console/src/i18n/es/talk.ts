import type { talk as english } from "../en/talk";
import type { Translation } from "../types";

export const talk: Translation<typeof english> = {
  title: "Probar",
};
