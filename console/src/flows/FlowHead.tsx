import { useQuery } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { Link } from "react-router";
import { useText } from "../i18n";
import { flowAddress } from "../shell/addresses";
import { PageHead } from "../shell/kit";
import { flowsQuery } from "./queries";

interface Props {
  readonly flowId: string;
  /** What the page is about, of the flow. */
  readonly about?: string;
  readonly intro?: ReactNode;
  readonly children?: ReactNode;
}

/** The head of a page below a flow's own. */
export function FlowHead({ flowId, about, ...rest }: Props): ReactNode {
  const say = useText("flows");
  const name = useQuery(flowsQuery).data?.find((each) => each.id === flowId)?.name ?? flowId;
  const trail = (
    <>
      <Link to="/flows">{say("title")}</Link> › <Link to={flowAddress(flowId)}>{name}</Link>
    </>
  );
  return <PageHead title={about === undefined ? name : `${about}: ${name}`} trail={trail} {...rest} />;
}
