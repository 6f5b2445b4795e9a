export const talk = {
  title: "Talk",
} as const;
