import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { type ComponentType, lazy, type ReactNode, Suspense, useEffect, useMemo, useState } from "react";
import { createBrowserRouter, Navigate, Route, RouterProvider, Routes } from "react-router";
import { Refused } from "../api/client";
import { ROOT } from "../api/early";
import FlowsPage from "../flows/FlowsPage";
import { type Dictionary, dictionaryOf, type Language, languageOf, SpeechContext } from "../i18n";
import { english } from "../i18n/en";
import { ErrorBoundary } from "./ErrorBoundary";
import { fetched } from "./fetched";
import { Layout } from "./Layout";
import { Session } from "./Session";
import { Loading, NotFound } from "./states";

/** A page of its own file; that of the address is fetched at once, not only when the session is known. */
function page(address: RegExp, load: () => Promise<{ default: ComponentType }>): ComponentType {
  if (address.test(window.location.pathname)) load().catch(() => undefined);
  return lazy(() => fetched(load));
}

const FlowPage = page(/\/flows\/[^/]+$/, () => import("../flows/FlowPage"));
const VersionPage = page(/\/versions\//, () => import("../flows/VersionPage"));
const ConversationsPage = page(/\/conversations$/, () => import("../conversations/ConversationsPage"));
const ConversationPage = page(/\/conversations\//, () => import("../conversations/ConversationPage"));
const PublishingPage = page(/\/publishing$/, () => import("../publishing/PublishingPage"));
const OperationsPage = page(/\/operations$/, () => import("../operations/OperationsPage"));

/** What was refused is refused again; a lost connection is tried until it is back, and so is what there was no room or no
 * store for, where nothing else is shown. */
function passes({ error, data }: { readonly error: unknown; readonly data: unknown }): boolean {
  return !(error instanceof Refused) || (data === undefined && (error.status === 429 || error.status >= 500));
}

function newQueries(): QueryClient {
  return new QueryClient({
    defaultOptions: {
      queries: {
        retry: (failures, error) => !(error instanceof Refused) && failures < 2,
        retryDelay: (failures) => Math.min(500 * 2 ** failures, 4000),
        refetchInterval: ({ state }) => (state.status === "error" && passes(state) ? 4000 : false),
        staleTime: 5_000,
        networkMode: "always",
        refetchOnReconnect: true,
      },
      // Where the browser knows that it is offline too: held back until it is not, what was given up by then would be done.
      mutations: { networkMode: "always" },
    },
  });
}

const LANGUAGE_PLACE = "flow-engine.language";

function SpeechProvider({ children }: { readonly children: ReactNode }): ReactNode {
  const [language, setLanguage] = useState<Language>(() =>
    languageOf([localStorage.getItem(LANGUAGE_PLACE) ?? "", ...navigator.languages]),
  );
  const [dictionary, setDictionary] = useState<Dictionary | null>(language === "en" ? english : null);
  useEffect(() => {
    let wanted = true;
    const loading = fetched(() => dictionaryOf(language)).catch(() => english);
    void loading.then((loaded) => {
      if (!wanted) return;
      document.documentElement.lang = language;
      setDictionary(loaded);
    });
    return () => {
      wanted = false;
    };
  }, [language]);
  const speech = useMemo(
    () => ({
      language,
      dictionary: dictionary ?? english,
      speak: (next: Language) => {
        localStorage.setItem(LANGUAGE_PLACE, next);
        setLanguage(next);
      },
    }),
    [language, dictionary],
  );
  if (dictionary === null) return null;
  return <SpeechContext value={speech}>{children}</SpeechContext>;
}

// A router that has its pages as data is the one that can hold back a navigation: unsaved work asks for that.
const ROUTER = createBrowserRouter([{ path: "*", element: <Rooms /> }], { basename: `${ROOT}/console` });

export function App(): ReactNode {
  const [queries] = useState(newQueries);
  return (
    <SpeechProvider>
      <QueryClientProvider client={queries}>
        <RouterProvider router={ROUTER} />
      </QueryClientProvider>
    </SpeechProvider>
  );
}

function Rooms(): ReactNode {
  return (
    <Session>
      <Layout>
        <ErrorBoundary>
          <Suspense fallback={<Loading />}>
            <Pages />
          </Suspense>
        </ErrorBoundary>
      </Layout>
    </Session>
  );
}

function Pages(): ReactNode {
  return (
    <Routes>
      <Route index element={<Navigate to="/flows" replace />} />
      <Route path="flows" element={<FlowsPage />} />
      <Route path="flows/:flowId" element={<FlowPage />} />
      <Route path="flows/:flowId/publishing" element={<PublishingPage />} />
      <Route path="flows/:flowId/versions/:versionId" element={<VersionPage />} />
      <Route path="conversations" element={<ConversationsPage />} />
      <Route path="conversations/*" element={<ConversationPage />} />
      <Route path="operations" element={<OperationsPage />} />
      <Route path="*" element={<NotFound />} />
    </Routes>
  );
}
