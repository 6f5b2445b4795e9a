import { lazy, type ReactNode, Suspense } from "react";
import { NavLink } from "react-router";
import { useText } from "../i18n";
import { Boundary } from "./ErrorBoundary";
import { fetched } from "./fetched";
import { holdFocus } from "./focus";
import { Button } from "./kit";
import { useSession } from "./Session";

/** After the page itself: menus are a quarter of what it would take to show the first one. */
const Settings = lazy(() => fetched(() => import("./Settings")));

/** The bar with the main navigation, at the bottom of narrow screens, and the page. */
export function Layout({ children }: { readonly children: ReactNode }): ReactNode {
  const say = useText("shell");
  const noMenu = (
    <Button kind="bare" disabled aria-label={say("settings")}>
      <Initial />
    </Button>
  );
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
        <Boundary place={null} instead={noMenu}>
          <Suspense fallback={noMenu}>
            <Settings>
              <Initial />
            </Settings>
          </Suspense>
        </Boundary>
      </header>
      <main id="content" tabIndex={-1} ref={holdFocus}>
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

/** Of the name of who is signed in. */
function Initial(): ReactNode {
  const { who } = useSession();
  return (
    <span className="initial" aria-hidden="true">
      {who.name.slice(0, 1).toUpperCase()}
    </span>
  );
}
