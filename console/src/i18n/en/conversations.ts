export const conversations = {
  title: "Conversations",
} as const;
