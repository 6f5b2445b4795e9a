import type { ReactNode } from "react";
import { Link } from "react-router";
import { ConnectionLost, Refused } from "../api/client";
import type { Scope } from "../api/session";
import { useText } from "../i18n";
import { Outdated } from "./fetched";
import { Button, PageHead } from "./kit";

export function Loading(): ReactNode {
  const say = useText("shell");
  return (
    <p className="loading" role="status">
      <span className="spinner" aria-hidden="true" />
      {say("loading")}
    </p>
  );
}

interface StateProps {
  readonly title: string;
  readonly children?: ReactNode;
  readonly actions?: ReactNode;
}

/** A page or a part of one that has nothing to show, and what to do about it. */
export function EmptyState({ title, children, actions }: StateProps): ReactNode {
  return (
    <div className="state">
      <h2>{title}</h2>
      {children === undefined ? null : <div className="quiet">{children}</div>}
      {actions === undefined ? null : <div className="row">{actions}</div>}
    </div>
  );
}

/** Why something could not be shown or done: the service is away, or it refused and says why. What is shown is asked for
 * until it is there; what somebody `did` is not done again by itself. */
export function ErrorState({
  error,
  retry,
  did = false,
  called,
}: {
  /** Null where all is well: nothing is shown then. */
  readonly error: Error | null;
  readonly retry?: () => void;
  readonly did?: boolean;
  /** What people call the place of a finding; its JSON pointer is shown where nothing is said here. */
  readonly called?: (pointer: string) => string;
}): ReactNode {
  const say = useText("shell");
  if (error === null) return null;
  const lost = error instanceof ConnectionLost;
  const outdated = error instanceof Outdated;
  const missing = error instanceof Refused && error.status === 404;
  const title = outdated
    ? say("outdatedTitle")
    : lost
      ? say("lostTitle")
      : missing
        ? say("notFoundTitle")
        : say("refusedTitle");
  const findings =
    error instanceof Refused ? error.problem.errors.filter((each) => each.message !== error.message) : [];
  return (
    <div className="state problem" role="alert">
      <h2>{title}</h2>
      <p className="quiet">
        {outdated ? say("outdatedText") : lost ? say(did ? "lostAction" : "lostText") : error.message}
      </p>
      {findings.length > 0 ? (
        <ul className="findings">
          {findings.map((each) => (
            <li key={`${each.pointer} ${each.code} ${each.message}`}>
              {called === undefined ? <code>{each.pointer}</code> : <strong>{called(each.pointer)}</strong>}{" "}
              {each.message}
            </li>
          ))}
        </ul>
      ) : null}
      {outdated ? <Button onClick={() => window.location.reload()}>{say("loadAnew")}</Button> : null}
      {outdated || retry === undefined ? null : <Button onClick={retry}>{say("retry")}</Button>}
    </div>
  );
}

interface NotYetProps {
  readonly of: readonly { readonly error: Error | null; readonly refetch: () => Promise<unknown> }[];
}

/** In the place of what is asked for: that it is under way, or why it is not there. */
export function NotYet({ of }: NotYetProps): ReactNode {
  const error = of.find((each) => each.error !== null)?.error ?? null;
  const retry = (): void => {
    for (const each of of) void each.refetch();
  };
  return error === null ? <Loading /> : <ErrorState error={error} retry={retry} />;
}

/** The error of what was done last, if it failed. */
export function lastError(
  ...done: readonly { readonly error: Error | null; readonly submittedAt: number }[]
): Error | null {
  return done.reduce((last, each) => (each.submittedAt > last.submittedAt ? each : last)).error;
}

export function NotFound(): ReactNode {
  const say = useText("shell");
  return (
    <>
      <PageHead title={say("notFoundTitle")} intro={say("notFoundText")} />
      <Link to="/flows">{say("home")}</Link>
    </>
  );
}

export function ScopeMissing({ scope }: { readonly scope: Scope }): ReactNode {
  const say = useText("shell");
  return (
    <EmptyState title={say("missingScopeTitle")}>
      <p>{say("missingScope", { scope })}</p>
    </EmptyState>
  );
}
