import type { operations as english } from "../en/operations";
import type { Translation } from "../types";

export const operations: Translation<typeof english> = {
  title: "Operaciones",
};
