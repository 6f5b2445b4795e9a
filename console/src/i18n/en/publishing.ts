export const publishing = {
  title: "Publishing",
} as const;
