/** The parts that every room is made of. */
import {
  type ButtonHTMLAttributes,
  createContext,
  type FormEvent,
  type FormHTMLAttributes,
  type InputHTMLAttributes,
  type ReactNode,
  useContext,
  useEffect,
  useId,
  useLayoutEffect,
  useRef,
} from "react";
import { useText } from "../i18n";

interface ButtonProps extends ButtonHTMLAttributes<HTMLButtonElement> {
  readonly kind?: "plain" | "primary" | "danger" | "bare";
}

/** One that cannot be used now keeps the focus that it has: with `disabled` nothing would have it. */
export function Button({
  kind = "plain",
  type = "button",
  className = "",
  disabled = false,
  onClick,
  ...rest
}: ButtonProps): ReactNode {
  return (
    <button
      type={type}
      className={`button ${kind} ${className}`.trim()}
      aria-disabled={disabled || undefined}
      onClick={(event) => (disabled ? event.preventDefault() : onClick?.(event))}
      {...rest}
    />
  );
}

type FormProps = Omit<FormHTMLAttributes<HTMLFormElement>, "onSubmit"> & { readonly submit: () => void };

/** What is typed in it goes where the page sends it: the browser does not load another page. */
export function Form({ submit, ...rest }: FormProps): ReactNode {
  const sent = (event: FormEvent): void => {
    event.preventDefault();
    submit();
  };
  return <form className="stack" {...rest} onSubmit={sent} />;
}

interface FieldControl {
  readonly id: string;
  readonly "aria-describedby"?: string;
  readonly "aria-invalid"?: boolean;
}

interface FieldProps {
  readonly label: string;
  readonly hint?: string;
  readonly error?: string;
  /** The name of the place of a document that it is for. */
  readonly at?: string;
  readonly children: (control: FieldControl) => ReactNode;
}

/** A label, its control, and what is to be known or put right about it. */
export function Field({ label, hint, error, at, children }: FieldProps): ReactNode {
  const id = useId();
  const note = error ?? hint;
  const described = note === undefined ? {} : { "aria-describedby": `${id}-note` };
  return (
    <div className="field" data-at={at}>
      <label htmlFor={id}>{label}</label>
      {children({ id, ...described, ...(error === undefined ? {} : { "aria-invalid": true }) })}
      {note === undefined ? null : (
        <p
          key={error === undefined ? "hint" : "wrong"}
          id={`${id}-note`}
          className={error === undefined ? "hint" : "hint wrong"}
          role={error === undefined ? undefined : "alert"}
        >
          <Literals text={note} />
        </p>
      )}
    </div>
  );
}

type NumberInputProps = Omit<InputHTMLAttributes<HTMLInputElement>, "value" | "onChange"> & {
  readonly value: number;
  readonly set: (value: number) => void;
};

/** A number that has to be given: NaN while there is none, so that another one can be typed in its place. */
export function NumberInput({ value, set, ...rest }: NumberInputProps): ReactNode {
  return (
    <input
      {...rest}
      type="number"
      required
      value={Number.isNaN(value) ? "" : value}
      onChange={(event) => set(event.target.valueAsNumber)}
    />
  );
}

/** A text with what stands between backticks as code. */
export function Literals({ text }: { readonly text: string }): ReactNode {
  return text.split("`").map((part, number) =>
    // biome-ignore lint/suspicious/noArrayIndexKey: parts have no other name, and never move
    number % 2 === 1 ? <code key={number}>{part}</code> : part,
  );
}

export type Tone = "neutral" | "accent" | "good" | "warn" | "bad";

export function Badge({
  tone = "neutral",
  children,
}: {
  readonly tone?: Tone;
  readonly children: ReactNode;
}): ReactNode {
  return <span className={`badge ${tone}`}>{children}</span>;
}

/** As the `ref` of tabs that scroll: the one that the address has chosen is in sight. */
export function chosenInSight(tab: HTMLElement | null): void {
  if (tab?.dataset.state === "active") tab.scrollIntoView({ block: "nearest", inline: "nearest" });
}

interface DialogProps {
  readonly title: string;
  readonly open: boolean;
  readonly close: () => void;
  readonly children: ReactNode;
  readonly wide?: boolean;
}

/** Whether the page is out of sight while its user signs in again. */
export const Covered = createContext(false);

/** A modal dialog of the browser's own: it holds the focus, Escape closes it, the focus goes back. On a covered page
 * it waits: what nobody sees must not hold the focus. */
export function Dialog({ title, open, close, children, wide = false }: DialogProps): ReactNode {
  const say = useText("shell");
  const element = useRef<HTMLDialogElement>(null);
  const heading = useId();
  const covered = useContext(Covered);
  const shown = open && !covered;
  // Before anything else happens on the page: the browser tells a close later, maybe of a dialog that is open again.
  useLayoutEffect(() => {
    const dialog = element.current;
    if (dialog === null) return;
    if (shown && !dialog.open) dialog.showModal();
    if (!shown && dialog.open) dialog.close();
  }, [shown]);
  return (
    <dialog
      ref={element}
      className={wide ? "dialog wide" : "dialog"}
      aria-labelledby={heading}
      onClose={() => {
        if (!covered && element.current?.open === false) close();
      }}
    >
      {open ? (
        <>
          <h2 id={heading}>{title}</h2>
          {children}
          {/* The last of all: what the dialog is for has the focus first. */}
          <Button kind="bare" className="shut" aria-label={say("close")} onClick={close}>
            ✕
          </Button>
        </>
      ) : null}
    </dialog>
  );
}

/** The head of a page: where one is, what it is, what can be done. */
export function PageHead(props: {
  readonly title: string;
  readonly intro?: ReactNode;
  readonly trail?: ReactNode;
  readonly children?: ReactNode;
}): ReactNode {
  const product = useText("shell")("product");
  useEffect(() => {
    document.title = `${props.title} · ${product}`;
  }, [props.title, product]);
  return (
    <header className="page-head">
      <div>
        {props.trail === undefined ? null : <nav className="trail">{props.trail}</nav>}
        <h1>{props.title}</h1>
        {props.intro === undefined ? null : <p className="quiet">{props.intro}</p>}
      </div>
      {props.children === undefined ? null : <div className="row">{props.children}</div>}
    </header>
  );
}
