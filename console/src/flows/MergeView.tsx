import { MergeView as SideBySide } from "@codemirror/merge";
import { EditorState } from "@codemirror/state";
import { useQuery } from "@tanstack/react-query";
import { type ReactNode, useEffect, useRef, useState } from "react";
import { useText } from "../i18n";
import { Button } from "../shell/kit";
import { ErrorState, Loading } from "../shell/states";
import { jsonEditing, OWN_HISTORY } from "./codemirror";
import { sendable, type VersionDocument } from "./document";
import { parsed } from "./editor";
import { type Version, versionQuery } from "./queries";

interface MergeViewProps {
  readonly flowId: string;
  readonly theirs: Version;
  readonly ours: VersionDocument;
  readonly take: (document: VersionDocument) => void;
}

/** Their version beside ours: their changes are taken over one by one, and the result goes on being edited. */
export default function MergeView({ flowId, theirs, ours, take }: MergeViewProps): ReactNode {
  const say = useText("flows");
  const frame = useRef<HTMLDivElement>(null);
  const view = useRef<SideBySide | null>(null);
  const [broken, setBroken] = useState(false);
  const found = useQuery(versionQuery(flowId, theirs.versionId));
  useEffect(() => {
    if (frame.current === null || found.data === undefined) return;
    const text = (document: VersionDocument): string => JSON.stringify(sendable(document, true), null, 2);
    const merging = new SideBySide({
      parent: frame.current,
      a: {
        doc: text(found.data),
        extensions: [jsonEditing(say("theirs")), EditorState.readOnly.of(true)],
      },
      b: { doc: text(ours), extensions: [jsonEditing(say("ours")), OWN_HISTORY] },
      revertControls: "a-to-b",
      collapseUnchanged: { margin: 3, minSize: 6 },
    });
    view.current = merging;
    return () => merging.destroy();
  }, [found.data, ours, say]);
  const done = (): void => {
    const document = parsed(view.current?.b.state.doc.toString() ?? "");
    setBroken(document === null);
    if (document !== null) take(document);
  };
  return (
    <>
      {found.isPending ? <Loading /> : null}
      {found.error === null ? null : <ErrorState error={found.error} />}
      <div className="row apart quiet">
        <span>{say("theirs")}</span>
        <span>{say("ours")}</span>
      </div>
      <div className="merge-view" ref={frame} />
      {broken ? (
        <p role="alert" className="hint wrong">
          {say("mergeBroken")}
        </p>
      ) : null}
      <div className="row">
        <Button kind="primary" onClick={done}>
          {say("takeMerge")}
        </Button>
      </div>
    </>
  );
}
