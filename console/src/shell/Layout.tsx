import { DropdownMenu } from "radix-ui";
import type { ReactNode } from "react";
import { NavLink } from "react-router";
import { LANGUAGES, type Language, useSpeech, useText } from "../i18n";
import { useSession } from "./Session";
import { THEMES, type Theme, useTheme } from "./theme";

/** The bar with the main navigation, at the bottom of narrow screens, and the page. */
export function Layout({ children }: { readonly children: ReactNode }): ReactNode {
  const say = useText("shell");
  return (
    <>
      <a className="skip" href="#content">
        {say("skip")}
      </a>
      <header className="bar">
        <span className="mark">
          <Mark />
          {say("product")}
        </span>
        <nav className="main-navigation" aria-label={say("navigation")}>
          <NavLink to="/flows">{say("flows")}</NavLink>
          <NavLink to="/conversations">{say("conversations")}</NavLink>
          <NavLink to="/operations">{say("operations")}</NavLink>
        </nav>
        <Settings />
      </header>
      <main id="content" tabIndex={-1}>
        {children}
      </main>
    </>
  );
}

function Mark(): ReactNode {
  return (
    <svg viewBox="0 0 24 24" width="22" height="22" aria-hidden="true">
      <path d="M6 6h6a6 6 0 0 1 6 6v6" fill="none" stroke="currentColor" strokeWidth="2" />
      <circle cx="5" cy="6" r="3" fill="currentColor" />
      <circle cx="18" cy="19" r="3" fill="currentColor" />
    </svg>
  );
}

const THEME_TEXTS = { system: "themeSystem", light: "themeLight", dark: "themeDark" } as const;

function Settings(): ReactNode {
  const say = useText("shell");
  const { who, signOut } = useSession();
  const { language, speak } = useSpeech();
  const [theme, setTheme] = useTheme();
  return (
    <DropdownMenu.Root modal={false}>
      <DropdownMenu.Trigger className="button bare" aria-label={say("settings")}>
        <span className="initial" aria-hidden="true">
          {who.name.slice(0, 1).toUpperCase()}
        </span>
      </DropdownMenu.Trigger>
      <DropdownMenu.Portal>
        <DropdownMenu.Content className="menu" align="end" sideOffset={6}>
          <DropdownMenu.Label className="menu-label">
            {say("signedInAs", { name: who.name, tenant: who.tenantId })}
          </DropdownMenu.Label>
          <DropdownMenu.Separator className="menu-line" />
          <DropdownMenu.Label className="menu-label">{say("theme")}</DropdownMenu.Label>
          <DropdownMenu.RadioGroup value={theme} onValueChange={(next) => setTheme(next as Theme)}>
            {THEMES.map((each) => (
              <Choice key={each} value={each}>
                {say(THEME_TEXTS[each])}
              </Choice>
            ))}
          </DropdownMenu.RadioGroup>
          <DropdownMenu.Separator className="menu-line" />
          <DropdownMenu.Label className="menu-label">{say("language")}</DropdownMenu.Label>
          <DropdownMenu.RadioGroup value={language} onValueChange={(next) => speak(next as Language)}>
            {Object.entries(LANGUAGES).map(([code, name]) => (
              <Choice key={code} value={code}>
                {name}
              </Choice>
            ))}
          </DropdownMenu.RadioGroup>
          <DropdownMenu.Separator className="menu-line" />
          <DropdownMenu.Item className="menu-item" onSelect={signOut}>
            {say("signOut")}
          </DropdownMenu.Item>
        </DropdownMenu.Content>
      </DropdownMenu.Portal>
    </DropdownMenu.Root>
  );
}

function Choice({ value, children }: { readonly value: string; readonly children: ReactNode }): ReactNode {
  return (
    <DropdownMenu.RadioItem className="menu-item" value={value}>
      <span className="tick">
        <DropdownMenu.ItemIndicator>✓</DropdownMenu.ItemIndicator>
      </span>
      {children}
    </DropdownMenu.RadioItem>
  );
}
