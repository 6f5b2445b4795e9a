/** What the published JSON Schema says of a place in a document: completion, meaning, and the forms of the task
 * panel. The rules between properties (`allOf`) are the service's to judge. Pure. */

export interface SchemaNode {
  readonly $ref?: string;
  readonly type?: string | readonly string[];
  readonly title?: string;
  readonly description?: string;
  readonly default?: unknown;
  readonly const?: unknown;
  readonly enum?: readonly unknown[];
  readonly anyOf?: readonly SchemaNode[];
  readonly properties?: Readonly<Record<string, SchemaNode>>;
  readonly required?: readonly string[];
  readonly items?: SchemaNode;
  readonly additionalProperties?: boolean | SchemaNode;
  readonly $defs?: Readonly<Record<string, SchemaNode>>;
}

/** The schema itself, its references followed; of alternatives the one that is not null. */
export function resolved(root: SchemaNode, node: SchemaNode | undefined): SchemaNode | undefined {
  if (node === undefined) return undefined;
  if (node.$ref !== undefined) {
    const name = node.$ref.split("/").at(-1) ?? "";
    const { $ref: _followed, ...own } = node;
    return { ...resolved(root, root.$defs?.[name]), ...own };
  }
  const choices = node.anyOf?.filter((each) => each.type !== "null") ?? [];
  const [only] = choices;
  return choices.length === 1 && only !== undefined ? { ...resolved(root, only), ...without(node) } : node;
}

function without({ anyOf: _chosen, ...rest }: SchemaNode): SchemaNode {
  return rest;
}

/** The schema of the place that a path of property names and indices leads to. */
export function schemaAt(root: SchemaNode, path: readonly (string | number)[]): SchemaNode | undefined {
  return path.reduce<SchemaNode | undefined>((node, segment) => {
    const here = resolved(root, node);
    if (here === undefined) return undefined;
    if (typeof segment === "number" || here.items !== undefined) return resolved(root, here.items);
    const open = typeof here.additionalProperties === "object" ? here.additionalProperties : undefined;
    return resolved(root, here.properties?.[segment] ?? open);
  }, root);
}

/** The values that a place may have, where these can be listed. */
export function valuesOf(node: SchemaNode): readonly unknown[] {
  if (node.enum !== undefined) return node.enum;
  if (node.const !== undefined) return [node.const];
  if (node.type === "boolean") return [true, false];
  return node.anyOf?.flatMap(valuesOf) ?? [];
}

/** The type of a place, null aside. */
export function typeOf(node: SchemaNode): string | undefined {
  return typeof node.type === "string" ? node.type : node.type?.find((each) => each !== "null");
}

/** What stands in a new property. */
export function emptyOf(root: SchemaNode, node: SchemaNode): unknown {
  const here = resolved(root, node) ?? {};
  if (here.default !== undefined && here.default !== null) return here.default;
  const [first] = here.enum ?? [];
  if (first !== undefined) return first;
  switch (typeOf(here)) {
    case "array":
      return [];
    case "boolean":
      return false;
    case "number":
    case "integer":
      return 0;
    case "object":
      return Object.fromEntries(
        (here.required ?? []).map((name) => [name, emptyOf(root, here.properties?.[name] ?? {})]),
      );
    default:
      return "";
  }
}

/** A property's name as a label: `transitionParameters` → `Transition parameters`. */
export function labelOf(name: string): string {
  const words = name
    .replace(/^_/, "")
    .replaceAll("_", " ")
    .replace(/([a-z])([A-Z])/g, "$1 $2")
    .toLowerCase();
  return words.charAt(0).toUpperCase() + words.slice(1);
}
