/** A form made from the JSON Schema of a place in the document. */
import { type ReactNode, useId, useRef, useState } from "react";
import { useText } from "../i18n";
import { Button, Field } from "../shell/kit";
import { freeName, type VersionDocument, withValueAt } from "./document";
import { emptyOf, labelOf, resolved, type SchemaNode, typeOf, valuesOf } from "./jsonSchema";

export interface FormScope {
  readonly root: SchemaNode;
  readonly document: VersionDocument;
  readonly readOnly: boolean;
}

interface FormProps {
  readonly scope: FormScope;
  readonly node: SchemaNode;
  readonly name: string;
  readonly value: unknown;
  readonly change: (value: unknown) => void;
}

/** One property: the control that its schema asks for. */
export function SchemaForm(props: FormProps): ReactNode {
  const { scope, name, value, change } = props;
  const node = resolved(scope.root, props.node) ?? {};
  const names = namesFor(name, scope.document);
  const values = names ?? valuesOf(node);
  switch (typeOf(node)) {
    case "object":
      return <ObjectForm {...props} node={node} />;
    case "array":
      return <ListForm {...props} node={node} />;
    case "boolean":
      if (valuesOf(node).length === 2) {
        return (
          <label className="choice">
            <input
              type="checkbox"
              disabled={scope.readOnly}
              checked={value === true}
              onChange={(event) => change(event.target.checked)}
            />
            {labelOf(name)}
          </label>
        );
      }
      break;
    case "number":
    case "integer":
      return (
        <Field label={labelOf(name)} {...hintOf(node)}>
          {(field) => (
            <input
              {...field}
              type="number"
              step="any"
              disabled={scope.readOnly}
              value={typeof value === "number" ? value : ""}
              onChange={(event) => change(event.target.value === "" ? undefined : Number(event.target.value))}
            />
          )}
        </Field>
      );
    default:
  }
  if (values.length > 0) return <Choice {...props} node={node} values={values} />;
  if (typeOf(node) === "string" || typeof value === "string") return <Text {...props} node={node} />;
  return <Raw {...props} node={node} />;
}

function hintOf(node: SchemaNode): { hint?: string } {
  return node.description === undefined ? {} : { hint: node.description };
}

/** What a property can hold of the document: the `_id` or name of something, or the thing itself. */
function namesFor(name: string, document: VersionDocument): readonly unknown[] | undefined {
  if (name === "variableId") return (document.variables ?? []).map((each) => each._id);
  if (name === "mcpServerName") return (document.mcpServers ?? []).map((each) => each.name);
  if (name === "excludedGlobalTasks") return document.globalTasks ?? [];
  if (name === "enabledCheckpoints") return document.checkpoints ?? [];
  return undefined;
}

/** What people call a value that a property holds. */
function shownAs(name: string, value: unknown, document: VersionDocument): string {
  const named =
    name === "variableId" ? document.variables : name === "excludedGlobalTasks" ? document.tasks : [];
  return calledBy(named?.find((each) => each._id === value) ?? value) ?? String(value);
}

function idOf(value: unknown): unknown {
  return Object(value)._id ?? value;
}

function Choice({
  scope,
  name,
  node,
  value,
  change,
  values,
}: FormProps & { readonly values: readonly unknown[] }): ReactNode {
  const shown = values.map((each) => JSON.stringify(each));
  const current = value === undefined ? "" : JSON.stringify(value);
  return (
    <Field label={labelOf(name)} {...hintOf(node)}>
      {(field) => (
        <select
          {...field}
          disabled={scope.readOnly}
          value={current}
          onChange={(event) => change(event.target.value === "" ? undefined : JSON.parse(event.target.value))}
        >
          {shown.includes(current) && current !== "" ? null : (
            <option value={current}>{String(value ?? "") || "–"}</option>
          )}
          {values.map((each, index) => (
            <option key={shown[index]} value={shown[index]}>
              {shownAs(name, each, scope.document)}
            </option>
          ))}
        </select>
      )}
    </Field>
  );
}

const LONG_TEXTS = new Set(["prompt", "globalPrompt", "description", "reason"]);

function Text({ scope, name, node, value, change }: FormProps): ReactNode {
  const given = {
    disabled: scope.readOnly,
    value: typeof value === "string" ? value : "",
    onChange: ({ target }: { readonly target: { readonly value: string } }) => change(target.value),
  };
  return (
    <Field label={labelOf(name)} {...hintOf(node)}>
      {(field) =>
        LONG_TEXTS.has(name) ? <textarea {...field} {...given} rows={3} /> : <input {...field} {...given} />
      }
    </Field>
  );
}

/** What has no control of its own, as JSON. It is written when it is left, if it is another text than the value's:
 * another task's field, or another item's after one is removed, is another field. */
function Raw({ scope, name, node, value, change }: FormProps): ReactNode {
  const say = useText("flows");
  const known = value === undefined ? "" : JSON.stringify(value, null, 2);
  const [wrong, setWrong] = useState<{ readonly beside: string; readonly reason: string } | null>(null);
  const asJson = say("asJson", { example: typeOf(node) === "object" ? '`{"key": "value"}`' : '`"text"`' });
  const hint = [node.description, asJson].filter(Boolean).join(" ");
  const error = wrong?.beside === known ? { error: say("notJson", { reason: wrong.reason }) } : {};
  return (
    <Field label={labelOf(name)} hint={hint} {...error}>
      {(field) => (
        <textarea
          {...field}
          key={known}
          className="mono"
          rows={3}
          disabled={scope.readOnly}
          defaultValue={known}
          onBlur={(event) => {
            const written = event.target.value;
            try {
              if (written !== known) change(written.trim() === "" ? undefined : JSON.parse(written));
              setWrong(null);
            } catch (error) {
              setWrong({ beside: known, reason: (error as SyntaxError).message });
            }
          }}
        />
      )}
    </Field>
  );
}

function ObjectForm({ scope, name, node, value, change }: FormProps): ReactNode {
  const held =
    typeof value === "object" && value !== null ? (value as Readonly<Record<string, unknown>>) : {};
  const known = Object.entries(node.properties ?? {});
  if (known.length === 0) return <Raw scope={scope} name={name} node={node} value={value} change={change} />;
  return (
    <fieldset className="form-group">
      <legend>{labelOf(name)}</legend>
      {known.map(([inner, each]) => (
        <div key={inner} data-at={inner}>
          <SchemaForm
            scope={scope}
            name={inner}
            node={each}
            value={held[inner]}
            change={(next) => change(withValueAt(held, `/${inner}`, next))}
          />
        </div>
      ))}
    </fieldset>
  );
}

function ListForm({ scope, name, node, value, change }: FormProps): ReactNode {
  const say = useText("flows");
  const heading = useId();
  const held = Array.isArray(value) ? (value as readonly unknown[]) : [];
  const item = resolved(scope.root, node.items) ?? {};
  const added = useRef(-1);
  const add = (): void => {
    added.current = held.length;
    change([...held, newItem(emptyOf(scope.root, item), singular(name), held)]);
  };
  const named = namesFor(name, scope.document);
  const choices = named ?? valuesOf(item);
  if (named !== undefined || choices.length > 0) {
    return (
      <fieldset className="form-group">
        <legend>{labelOf(name)}</legend>
        {choices.length === 0 ? "–" : null}
        {choices.map((choice) => {
          const others = held.filter((each) => idOf(each) !== idOf(choice));
          return (
            <label className="choice" key={String(idOf(choice))}>
              <input
                type="checkbox"
                disabled={scope.readOnly}
                checked={others.length < held.length}
                onChange={(event) => change(event.target.checked ? [...held, choice] : others)}
              />
              {shownAs(name, choice, scope.document)}
            </label>
          );
        })}
      </fieldset>
    );
  }
  return (
    <section className="form-list" aria-labelledby={heading}>
      <div className="row apart">
        <strong id={heading}>{labelOf(name)}</strong>
        <Button
          kind="bare"
          disabled={scope.readOnly}
          aria-label={`${say("add")}: ${labelOf(name)}`}
          onClick={add}
        >
          + {say("add")}
        </Button>
      </div>
      {held.map((each, index) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: items of any shape have no other identity
        <Item key={index} at={index} name={calledBy(each)} open={index === added.current}>
          <SchemaForm
            scope={scope}
            name={singular(name)}
            node={item}
            value={each}
            change={(next) => change(withValueAt(held, `/${index}`, next ?? null))}
          />
          <Button
            kind="bare"
            disabled={scope.readOnly}
            aria-label={`${say("remove")}: ${labelOf(singular(name))} ${index + 1}`}
            onClick={() => change(held.filter((_, other) => other !== index))}
          >
            {say("remove")}
          </Button>
        </Item>
      ))}
    </section>
  );
}

/** What has a name is folded under it. */
function Item({
  at,
  name,
  open,
  children,
}: {
  readonly at: number;
  readonly name: string | undefined;
  readonly open: boolean;
  readonly children: ReactNode;
}): ReactNode {
  if (name === undefined)
    return (
      <div className="form-item" data-at={at}>
        {children}
      </div>
    );
  return (
    <details className="form-more" open={open} data-at={at}>
      <summary>{name}</summary>
      <div className="form-item">{children}</div>
    </details>
  );
}

/** The name of an item that has one, which may be empty. */
function calledBy(item: unknown): string | undefined {
  const { name, _id } = Object(item) as { readonly name?: unknown; readonly _id?: unknown };
  if (typeof name !== "string") return undefined;
  return name.trim() === "" ? String(_id ?? "–") : name;
}

/** An item with an `_id` and a name that no other has. */
function newItem(empty: unknown, wanted: string, others: readonly unknown[]): unknown {
  if (Object(empty)._id !== "") return empty;
  const taken = others.flatMap((each) => [String(Object(each)._id), String(Object(each).name)]);
  const id = freeName(wanted, new Set(taken));
  return { ...Object(empty), _id: id, name: id };
}

interface PropertiesProps {
  readonly scope: FormScope;
  readonly properties: readonly (readonly [string, SchemaNode])[];
  readonly of: Readonly<Record<string, unknown>>;
  readonly put: (part: Readonly<Record<string, unknown>>, as?: string) => void;
}

/** A form for each of these properties. What is typed in one control is undone together, and nothing with it. */
export function Properties({ scope, properties, of, put }: PropertiesProps): ReactNode {
  return (
    <div className="stack">
      {properties.map(([name, node]) => (
        <div key={name} data-at={name}>
          <SchemaForm
            scope={scope}
            name={name}
            node={node}
            value={of[name]}
            change={(value) => put({ [name]: value }, document.activeElement?.id || undefined)}
          />
        </div>
      ))}
    </div>
  );
}

function singular(name: string): string {
  return name.endsWith("s") ? name.slice(0, -1) : name;
}
