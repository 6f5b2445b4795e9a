import type { ReactNode } from "react";
import { useText } from "../i18n";
import { PageHead } from "../shell/kit";

export default function ConversationPage(): ReactNode {
  const say = useText("conversations");
  return <PageHead title={say("title")} />;
}
