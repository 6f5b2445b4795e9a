import { useMutation } from "@tanstack/react-query";
import { type ReactNode, useRef, useState } from "react";
import { client, reply } from "../api/client";
import { useText } from "../i18n";
import { Badge, Button, Field } from "../shell/kit";
import { ErrorState, lastError } from "../shell/states";
import { download } from "./download";
import { type Try, testOf } from "./tries";

interface FlowTestsProps {
  readonly flowId: string;
  readonly versionId: string;
  readonly dirty: boolean;
  readonly now: Try | null;
  readonly covered: (tasks: ReadonlySet<string> | null) => void;
}

/** Flow tests: one made of the talk, any that are pasted, played on the saved version; what they reach is on the graph. */
export function FlowTests({ flowId, versionId, dirty, now, covered }: FlowTestsProps): ReactNode {
  const say = useText("talk");
  const [yaml, setYaml] = useState("");
  const made = useRef("");
  const making = useMutation({
    mutationFn: testOf,
    onSuccess: (test) => {
      // What somebody wrote there stays, as a comment.
      made.current = yaml === made.current ? test : test + yaml.replace(/^/gm, "# ");
      setYaml(made.current);
    },
  });
  const playing = useMutation({
    mutationFn: () => {
      const path = { flow_id: flowId, version_id: versionId };
      return reply(
        client.POST("/v1/flows/{flow_id}/versions/{version_id}/tests", {
          params: { path },
          body: { tests: yaml },
        }),
      );
    },
    onSuccess: ({ coverage }) => covered(new Set(coverage.entered)),
  });
  const error = lastError(making, playing);
  return (
    <details className="talk-tests">
      <summary>{say("flowTests")}</summary>
      <div className="stack">
        <div className="row">
          <Button
            disabled={now === null || making.isPending}
            onClick={() => now !== null && making.mutate(now)}
          >
            {say("saveAsTest")}
          </Button>
          <Button disabled={yaml.trim() === "" || playing.isPending} onClick={() => playing.mutate()}>
            {say("playTests")}
          </Button>
          <Button kind="bare" disabled={yaml === ""} onClick={() => download(yaml, "flow-test.yaml")}>
            {say("download")}
          </Button>
        </div>
        <Field label={say("testsYaml")} hint={dirty ? say("testsOnSaved") : say("testsHint")}>
          {(field) => (
            <textarea
              {...field}
              className="mono"
              rows={6}
              spellCheck={false}
              value={yaml}
              onChange={(event) => setYaml(event.target.value)}
            />
          )}
        </Field>
        <ErrorState error={error} did />
        {playing.data === undefined ? null : (
          <div role="status">
            <p className="row">
              <Badge tone="good">{say("passed", { count: playing.data.passed })}</Badge>
              {playing.data.failed > 0 ? (
                <Badge tone="bad">{say("failed", { count: playing.data.failed })}</Badge>
              ) : null}
              <span className="quiet">
                {say("coverage", {
                  reached: playing.data.coverage.tasks.reached,
                  total: playing.data.coverage.tasks.total,
                })}
              </span>
            </p>
            <ul className="findings">
              {playing.data.scenarios
                .filter((each) => !each.passed)
                .map((each) => (
                  <li key={each.name}>
                    <strong>{each.name}</strong>: {each.failure?.step}: {each.failure?.messages.join(" ")}
                  </li>
                ))}
            </ul>
          </div>
        )}
      </div>
    </details>
  );
}
