import { useQuery } from "@tanstack/react-query";
import { Tabs } from "radix-ui";
import type { ReactNode } from "react";
import { useParams, useSearchParams } from "react-router";
import { FlowHead } from "../flows/FlowHead";
import { flowsQuery, versionsOf, versionsQuery } from "../flows/queries";
import { useText } from "../i18n";
import { chosenInSight } from "../shell/kit";
import { useSession } from "../shell/Session";
import { EmptyState, NotFound, NotYet, ScopeMissing } from "../shell/states";
import { Compare } from "./Compare";
import { History } from "./History";
import { Migrate } from "./Migrate";
import { ReplayReport } from "./ReplayReport";
import { Tags } from "./Tags";
import "./publishing.css";

const PANES = { tags: Tags, compare: Compare, replay: ReplayReport, migrate: Migrate, history: History };
const NAMES = Object.keys(PANES) as (keyof typeof PANES)[];

export default function PublishingPage(): ReactNode {
  const say = useText("publishing");
  const { may } = useSession();
  const { flowId = "" } = useParams();
  const [address, setAddress] = useSearchParams();
  const flows = useQuery({ ...flowsQuery, enabled: may("designer") });
  const versions = useQuery({ ...versionsQuery(flowId), enabled: may("designer") });
  if (!may("designer")) return <ScopeMissing scope="designer" />;
  if (flows.data === undefined || versions.data === undefined) return <NotYet of={[flows, versions]} />;
  const flow = flows.data.find((each) => each.id === flowId);
  if (flow === undefined) return <NotFound />;
  const chosen = NAMES.find((pane) => pane === address.get("show")) ?? "tags";
  const shared = { flow, versions: versionsOf(versions.data) };
  return (
    <>
      <FlowHead flowId={flowId} about={say("title")} />
      {shared.versions.length === 0 ? (
        <EmptyState title={say("noVersions")}>
          <p>{say("noVersionsText")}</p>
        </EmptyState>
      ) : (
        <Tabs.Root
          value={chosen}
          onValueChange={(pane) => setAddress(pane === "tags" ? {} : { show: pane }, { replace: true })}
          className="stack"
        >
          <Tabs.List className="tabs scrolling" aria-label={say("title")}>
            {NAMES.map((pane) => (
              <Tabs.Trigger key={pane} ref={chosenInSight} className="tab" value={pane}>
                {say(`pane_${pane}`)}
              </Tabs.Trigger>
            ))}
          </Tabs.List>
          {Object.entries(PANES).map(([name, Pane]) => (
            <Tabs.Content key={name} value={name} className="stack">
              <Pane {...shared} />
            </Tabs.Content>
          ))}
        </Tabs.Root>
      )}
    </>
  );
}
