import { Component, type ReactNode } from "react";
import { useLocation } from "react-router";
import { ErrorState } from "./states";

interface Props {
  readonly children: ReactNode;
  readonly place: string;
}

/** A page that throws is a message on that page; the next address starts anew. */
class Boundary extends Component<Props, { error: Error | null; place: string }> {
  override state = { error: null, place: this.props.place };

  static getDerivedStateFromError(error: Error): { error: Error } {
    return { error };
  }

  static getDerivedStateFromProps(
    props: Props,
    state: { place: string },
  ): { error: null; place: string } | null {
    return props.place === state.place ? null : { error: null, place: props.place };
  }

  override render(): ReactNode {
    const { error } = this.state;
    return error === null ? (
      this.props.children
    ) : (
      <ErrorState error={error} retry={() => this.setState({ error: null })} />
    );
  }
}

export function ErrorBoundary({ children }: { readonly children: ReactNode }): ReactNode {
  return <Boundary place={useLocation().pathname}>{children}</Boundary>;
}
