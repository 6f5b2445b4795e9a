import { conversations } from "./conversations";
import { flows } from "./flows";
import { operations } from "./operations";
import { publishing } from "./publishing";
import { shell } from "./shell";
import { talk } from "./talk";

export const spanish = { shell, flows, talk, conversations, publishing, operations } as const;
