export const operations = {
  title: "Operations",
} as const;
