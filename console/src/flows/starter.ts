import type { Say } from "../i18n";
import { connected, newTask, placed, type VersionDocument, withTask } from "./document";

const LANGUAGE_TAGS = { en: "en-US", it: "it-IT", es: "es-ES" } as const;

/** The document that a new flow begins with: a greeting and a goodbye, ready to be published. */
export function starter(say: Say<"flows">, language: keyof typeof LANGUAGE_TAGS): VersionDocument {
  const tag = LANGUAGE_TAGS[language];
  const empty: VersionDocument = {
    draft: true,
    schemaVersion: "1.0.0",
    globalPrompt: say("starterGlobalPrompt"),
    channels: ["phone", "chat"],
    mandatoryChannels: ["chat"],
    closureConfig: { multiContact: false },
    mediaConfig: { audio: { presetId: "default" }, text: {} },
    defaultLanguage: tag,
    supportedLanguages: [tag],
    systemPromptsLanguage: tag,
    apiVersion: "v1",
    variables: [],
    uiMetadata: {},
    mcpServers: [],
    aiHelpers: [],
    tasks: [],
    firstTask: "",
    checkpoints: [],
    reasonsOfContact: [],
    results: [],
  };
  const welcome = {
    ...newTask("welcome"),
    description: say("starterWelcome"),
    prompt: say("starterWelcomePrompt"),
  };
  const goodbye = {
    ...newTask("goodbye"),
    description: say("starterGoodbye"),
    prompt: say("starterGoodbyePrompt"),
  };
  const apart = withTask(withTask(empty, welcome), goodbye);
  const both = connected(connected(apart, "welcome", "goodbye"), "goodbye", "welcome");
  return placed(both, { welcome: { x: 0, y: 0 }, goodbye: { x: 400, y: 0 } });
}
