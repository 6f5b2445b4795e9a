import { useQuery, useQueryClient } from "@tanstack/react-query";
import { createContext, type ReactNode, useContext, useEffect, useMemo, useRef, useState } from "react";
import { Refused, whenKeyExpires } from "../api/client";
import { ROOT } from "../api/early";
import { forgetKey, type Scope, takeKey, type Who, who } from "../api/session";
import { useText } from "../i18n";
import { Button, Covered, Field, Form } from "./kit";
import { ErrorState, NotYet } from "./states";

interface SignedIn {
  readonly who: Who;
  /** Whether the key opens what wants one of these scopes. */
  readonly may: (...scopes: readonly Scope[]) => boolean;
  readonly signOut: () => void;
}

const SessionContext = createContext<SignedIn | null>(null);

/** Who is signed in. Only inside `Session`. */
export function useSession(): SignedIn {
  const session = useContext(SessionContext);
  if (session === null) throw new Error("useSession needs a Session around it");
  return session;
}

/** Children are shown to whoever the service takes: with a key, or without one where it runs without keys. A key
 * that expires is asked for anew over the page, which keeps what was typed. */
export function Session({ children }: { readonly children: ReactNode }): ReactNode {
  const queries = useQueryClient();
  const [expired, setExpired] = useState(false);
  const known = useQuery({ queryKey: ["who"], queryFn: who, staleTime: Number.POSITIVE_INFINITY });
  useEffect(() => whenKeyExpires(() => setExpired(true)), []);
  const session = useMemo<SignedIn | null>(() => {
    const found = known.data;
    if (found === undefined) return null;
    return {
      who: found,
      may: (...scopes) => scopes.some((scope) => found.scopes.includes(scope)),
      signOut: () => {
        // Who is asked about work that is not saved, and stays, has the key for it still.
        const left = (): void => {
          forgetKey();
          queries.clear();
        };
        window.addEventListener("pagehide", left, { once: true });
        window.location.assign(`${ROOT}/console/flows`);
      },
    };
  }, [known.data, queries]);

  const again = (): void => {
    setExpired(false);
    void queries.invalidateQueries();
  };
  if (session === null) {
    const refused = known.error instanceof Refused && known.error.status === 401;
    if (refused) return <SignIn again={again} />;
    return <NotYet of={[known]} />;
  }
  return (
    <SessionContext value={session}>
      {expired ? <SignIn again={again} expired /> : null}
      <Covered value={expired}>
        <div hidden={expired}>{children}</div>
      </Covered>
    </SessionContext>
  );
}

/** As a `ref`: what is asked for in the place of a page has the focus. */
function atOnce(input: HTMLInputElement | null): void {
  input?.focus();
}

function SignIn({
  again,
  expired = false,
}: {
  readonly again: () => void;
  readonly expired?: boolean;
}): ReactNode {
  const say = useText("shell");
  const queries = useQueryClient();
  const [key, setKey] = useState("");
  const [kept, setKept] = useState(false);
  const [failure, setFailure] = useState<Error | null>(null);
  const [impossible, setImpossible] = useState(false);
  const [asking, setAsking] = useState(false);

  const before = useRef(document.activeElement);
  useEffect(() => {
    const had = before.current as HTMLElement | null;
    return () => {
      document.getElementById("content")?.focus();
      if (had?.closest("#content")) had.focus();
    };
  }, []);
  const submit = async (): Promise<void> => {
    // No header can carry it, so no key has it: to send it would look like a lost connection.
    const unsendable = /[^\x20-\x7e\xa0-\xff]/.test(key.trim());
    setImpossible(unsendable);
    if (unsendable) return;
    setAsking(true); // one key at a time: the answer to another one would be taken for this one's
    takeKey(key.trim(), kept);
    try {
      queries.setQueryData(["who"], await who());
      again();
    } catch (error) {
      forgetKey();
      setFailure(error instanceof Error ? error : new Error(String(error)));
      setAsking(false);
    }
  };
  const refused = impossible || (failure instanceof Refused && failure.status === 401);
  return (
    <main className="sign-in">
      <Form className="card" submit={() => void submit()}>
        <h1>{say("product")}</h1>
        <p className="quiet">{expired ? say("keyExpired") : say("signInIntro")}</p>
        <Field label={say("apiKey")} {...(refused ? { error: say("keyRefused") } : {})}>
          {(field) => (
            <input
              {...field}
              ref={atOnce}
              type="password"
              autoComplete="off"
              required
              value={key}
              onChange={(event) => setKey(event.target.value)}
            />
          )}
        </Field>
        <label className="choice">
          <input type="checkbox" checked={kept} onChange={(event) => setKept(event.target.checked)} />
          {say("keepKey")}
        </label>
        {failure !== null && !refused ? <ErrorState error={failure} did /> : null}
        <Button kind="primary" type="submit" disabled={asking}>
          {say("signIn")}
        </Button>
      </Form>
    </main>
  );
}
