import type { ReactNode } from "react";
import { useText } from "../i18n";
import { PageHead } from "../shell/kit";

export default function PublishingPage(): ReactNode {
  const say = useText("publishing");
  return <PageHead title={say("title")} />;
}
