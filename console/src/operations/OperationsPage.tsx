import type { ReactNode } from "react";
import { useText } from "../i18n";
import { PageHead } from "../shell/kit";

export default function OperationsPage(): ReactNode {
  const say = useText("operations");
  return <PageHead title={say("title")} />;
}
