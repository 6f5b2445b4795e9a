import { useSyncExternalStore } from "react";

export const THEMES = ["system", "light", "dark"] as const;
export type Theme = (typeof THEMES)[number];

const PLACE = "flow-engine.theme";
const listeners = new Set<() => void>();

function kept(): Theme {
  const found = localStorage.getItem(PLACE);
  return THEMES.find((theme) => theme === found) ?? "system";
}

function show(theme: Theme): void {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

/** The theme that was chosen in this browser, before anything is drawn. */
export function startTheme(): void {
  show(kept());
}

export function useTheme(): readonly [Theme, (theme: Theme) => void] {
  const theme = useSyncExternalStore((changed) => {
    listeners.add(changed);
    return () => listeners.delete(changed);
  }, kept);
  return [
    theme,
    (next) => {
      localStorage.setItem(PLACE, next);
      show(next);
      for (const changed of listeners) changed();
    },
  ];
}
