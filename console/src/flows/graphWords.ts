import type { AriaLabelConfig } from "@xyflow/react";
import type { Say } from "../i18n";
import { nameOf } from "./document";
import { notesOf, type Told, TYPE_TEXTS } from "./graph";

/** What is heard of the graph: of its tasks and connections, and of the rest of what React Flow draws. */
export function wordsOf(say: Say<"flows">): {
  readonly told: Told;
  readonly words: Partial<AriaLabelConfig>;
} {
  const help = say("taskHelp");
  return {
    told: {
      task: (data) => {
        const { task, mark } = data;
        const marked = mark === undefined ? [] : [say(mark === "error" ? "hasErrors" : "hasWarnings")];
        const type = say(TYPE_TEXTS[task.type] ?? "typeAio");
        return [nameOf(task), type, ...notesOf(data).map((note) => say(note)), ...marked].join(", ");
      },
      aTask: say("aTask"),
      aWay: say("aWay"),
    },
    words: {
      "node.a11yDescription.default": help,
      "node.a11yDescription.keyboardDisabled": help,
      "node.a11yDescription.ariaLiveMessage": ({ x, y }) => say("movedTo", { x, y }),
      "edge.a11yDescription.default": say("wayHelp"),
      "controls.ariaLabel": say("view"),
      "controls.zoomIn.ariaLabel": say("zoomIn"),
      "controls.zoomOut.ariaLabel": say("zoomOut"),
      "controls.fitView.ariaLabel": say("fitView"),
    },
  };
}
