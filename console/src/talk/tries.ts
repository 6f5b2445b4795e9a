/** A try as the talk goes on with it: begun by the first message, one turn each. */
import { useMutation } from "@tanstack/react-query";
import { useRef, useState } from "react";
import { client, reply, type Schemas } from "../api/client";
import { sendable, type VersionDocument } from "../flows/document";

export type Try = Schemas["TryReply"];
export type Turn = Schemas["Turn"];
export type Channel = Try["channel"];

/** What is shown of a turn, in the order in which it came. */
export interface Line {
  readonly key: number;
  readonly turn: number;
  readonly action: Schemas["TriedAction"];
}

export interface Talking {
  readonly now: Try | null;
  readonly lines: readonly Line[];
  /** The document that the try was begun with. */
  readonly of: VersionDocument | null;
}

const SILENT: Talking = { now: null, lines: [], of: null };

function followed(before: Talking, next: Try, document: VersionDocument): Talking {
  const turn = { turn: next.turn };
  const more = next.actions.map((action, index) => ({ ...turn, action, key: before.lines.length + index }));
  return { now: next, lines: [...before.lines, ...more], of: document };
}

/** By what and in which language the user comes; what is left out is the document's first. */
export interface Caller {
  readonly channel?: Channel;
  readonly language?: string;
}

/** What is sent of the document that is tried: as it would run. */
function begun(flowId: string, document: VersionDocument, caller: Caller): Promise<Try> {
  const params = { path: { flow_id: flowId } };
  const { channel, language } = caller;
  // The document may have changed since they were chosen.
  const known = {
    ...(channel !== undefined && document.channels?.includes(channel) ? { channel } : {}),
    ...(language !== undefined && document.supportedLanguages?.includes(language) ? { language } : {}),
  };
  const body = { document: sendable(document, false), ...known };
  return reply(client.POST("/v1/flows/{flow_id}/try", { params, body }));
}

export function useTry(flowId: string, document: VersionDocument, told: (now: Try | null) => void) {
  const [talking, setTalking] = useState(SILENT);
  const nth = useRef(0);
  const going = useMutation({
    mutationFn: async ({ turn, caller }: { turn: Turn; caller: Caller }) => {
      const mine = nth.current;
      // What comes of a talk that was started over meanwhile is no longer shown.
      const show = (next: Talking): void => {
        if (mine !== nth.current) return;
        setTalking(next);
        told(next.now);
      };
      let known = talking;
      if (known.now === null) known = followed(SILENT, await begun(flowId, document, caller), document);
      show(known);
      if (known.now !== null) {
        const path = { flow_id: flowId, try_id: known.now.tryId };
        const next = await reply(
          client.POST("/v1/flows/{flow_id}/try/{try_id}", { params: { path }, body: turn }),
        );
        show(followed(known, next, known.of ?? document));
      }
    },
  });
  const forget = (): void => {
    nth.current += 1;
    setTalking(SILENT);
    going.reset();
    told(null);
  };
  return { talking, going, forget };
}

/** What was done in a try, as a flow test in YAML. */
export async function testOf(known: Try): Promise<string> {
  const path = { flow_id: known.flowId, try_id: known.tryId };
  const test = await reply(
    client.GET("/v1/flows/{flow_id}/try/{try_id}/test", { params: { path }, parseAs: "text" }),
  );
  return String(test);
}
