import { DropdownMenu } from "radix-ui";
import type { ReactNode } from "react";
import { LANGUAGES, type Language, useSpeech, useText } from "../i18n";
import { useSession } from "./Session";
import { THEMES, type Theme, useTheme } from "./theme";

const THEME_TEXTS = { system: "themeSystem", light: "themeLight", dark: "themeDark" } as const;

/** The menu of who is signed in: theme, language, and the way out. `children` is what it is opened by. */
export default function Settings({ children }: { readonly children: ReactNode }): ReactNode {
  const say = useText("shell");
  const { who, signOut } = useSession();
  const { language, speak } = useSpeech();
  const [theme, setTheme] = useTheme();
  return (
    <DropdownMenu.Root modal={false}>
      <DropdownMenu.Trigger className="button bare" aria-label={say("settings")}>
        {children}
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
