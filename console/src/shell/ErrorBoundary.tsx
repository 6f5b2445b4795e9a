import { Component, type ReactNode } from "react";
import { useLocation } from "react-router";
import { Outdated } from "./fetched";
import { ErrorState } from "./states";

interface Props {
  readonly children: ReactNode;
  readonly place: unknown;
  /** What is shown in its place; the error itself where nothing is said here. */
  readonly instead?: ReactNode;
}

/** What throws is a message where it would be, and all around it stays; with another `place` it starts anew. */
export class Boundary extends Component<Props, { error: Error | null; place: unknown }> {
  override state: Readonly<{ error: Error | null; place: unknown }> = {
    error: null,
    place: this.props.place,
  };

  static getDerivedStateFromError(error: Error): { error: Error } {
    return { error };
  }

  static getDerivedStateFromProps(
    props: Props,
    state: { place: unknown },
  ): { error: null; place: unknown } | null {
    return props.place === state.place ? null : { error: null, place: props.place };
  }

  override render(): ReactNode {
    const { error } = this.state;
    if (error === null) return this.props.children;
    const told = <ErrorState error={error} retry={() => this.setState({ error: null })} />;
    return error instanceof Outdated ? told : (this.props.instead ?? told);
  }
}

/** A page that throws is a message on that page; the next address starts anew. */
export function ErrorBoundary({ children }: { readonly children: ReactNode }): ReactNode {
  return <Boundary place={useLocation().pathname}>{children}</Boundary>;
}
