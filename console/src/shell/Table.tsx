import { infiniteQueryOptions } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { useText } from "../i18n";
import { Button } from "./kit";

interface Props {
  readonly label: string;
  readonly head: readonly string[];
  readonly rows: readonly { readonly key: string; readonly cells: readonly ReactNode[] }[];
  readonly empty?: string;
}

/** A table that scrolls sideways where it does not fit, by the keyboard too. */
export function Table({ label, head, rows, empty }: Props): ReactNode {
  if (rows.length === 0 && empty !== undefined) return <p className="quiet">{empty}</p>;
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls is reached by the keyboard
    <section className="table-frame" aria-label={label} tabIndex={0}>
      <table>
        <thead>
          <tr>
            {head.map((each) => (
              <th key={each} scope="col">
                {each}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={row.key}>
              {row.cells.map((cell, index) => (
                <td key={head[index]}>{cell}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

/** What the service lists page by page, the latest first. */
export function pagesOf<Page extends { readonly nextBefore: string | null }>(
  name: string,
  fetchPage: (before: { readonly before?: string }, signal: AbortSignal) => Promise<Page>,
) {
  return infiniteQueryOptions({
    queryKey: [name],
    queryFn: ({ pageParam, signal }) => fetchPage(pageParam === "" ? {} : { before: pageParam }, signal),
    initialPageParam: "",
    getNextPageParam: (last: Page) => last.nextBefore,
  });
}

interface MoreProps {
  readonly of: {
    readonly hasNextPage: boolean;
    readonly isFetchingNextPage: boolean;
    readonly fetchNextPage: () => Promise<unknown>;
  };
}

/** The button below a table that has a next page. */
export function More({ of }: MoreProps): ReactNode {
  const say = useText("operations");
  return of.hasNextPage ? (
    <div className="row">
      <Button disabled={of.isFetchingNextPage} onClick={() => void of.fetchNextPage()}>
        {say("more")}
      </Button>
    </div>
  ) : null;
}
