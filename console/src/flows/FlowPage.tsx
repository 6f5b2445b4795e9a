import type { ReactNode } from "react";
import { useText } from "../i18n";
import { PageHead } from "../shell/kit";

export default function FlowPage(): ReactNode {
  const say = useText("flows");
  return <PageHead title={say("title")} />;
}
