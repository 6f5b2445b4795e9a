import { queryOptions, useQuery } from "@tanstack/react-query";
import { client, refusal, reply, type Schemas } from "../api/client";
import { ROOT } from "../api/early";
import { useSession } from "../shell/Session";
import type { VersionDocument } from "./document";
import type { SchemaNode } from "./jsonSchema";

export type FlowRow = Omit<Schemas["FlowReply"], "templateId">;
export type VersionRow = Schemas["VersionRowReply"];

export const flowsQuery = queryOptions({
  queryKey: ["flows"],
  queryFn: ({ signal }) => reply(client.GET("/v1/flows", { signal })),
});

export function versionsQuery(flowId: string) {
  return queryOptions({
    queryKey: ["flows", flowId, "versions"],
    queryFn: ({ signal }) =>
      reply(client.GET("/v1/flows/{flow_id}/versions", { params: { path: { flow_id: flowId } }, signal })),
  });
}

/** A version never changes: what was read once is read for good. */
export function versionQuery(flowId: string, versionId: string) {
  return queryOptions({
    queryKey: ["flows", flowId, "version", versionId],
    queryFn: async ({ signal }) => {
      const path = { flow_id: flowId, version_id: versionId };
      const document = await reply(
        client.GET("/v1/flows/{flow_id}/versions/{version_id}", { params: { path }, signal }),
      );
      return document as VersionDocument;
    },
    staleTime: Number.POSITIVE_INFINITY,
  });
}

/** A JSON Schema that the service publishes. */
export function schemaQuery(name: "flow-version" | "persona") {
  return queryOptions({
    queryKey: ["schema", name],
    queryFn: async ({ signal }): Promise<SchemaNode> => {
      const response = await fetch(`${ROOT}/schemas/${name}.json`, { signal });
      if (!response.ok) throw refusal(response.status, null);
      return (await response.json()) as SchemaNode;
    },
    staleTime: Number.POSITIVE_INFINITY,
  });
}

/** A version with all its tags: the API has a row for each. */
export interface Version {
  readonly versionId: string;
  readonly tags: readonly string[];
  readonly draft: boolean;
  readonly createdBy: string;
  readonly createdAt: string;
  readonly parentVersionId: string | null;
}

/** Newest first. */
export function versionsOf(rows: readonly VersionRow[]): readonly Version[] {
  const found = new Map<string, Version>();
  for (const row of rows) {
    const tags = [...(found.get(row.versionId)?.tags ?? []), ...(row.tag === null ? [] : [row.tag])];
    found.set(row.versionId, { ...row, tags });
  }
  return [...found.values()].reverse();
}

/** Those that conversations may be on: drafts never run. */
export function runnable(versions: readonly Version[]): readonly Version[] {
  return versions.filter((each) => !each.draft);
}

/** Ids that the server makes are long; their beginning tells them apart in a list. */
export function shortId(id: string): string {
  return /^[0-9a-f]{32}$/.test(id) ? id.slice(0, 8) : id;
}

export interface LiveConversations {
  readonly byFlow: ReadonlyMap<string, number>;
  readonly byVersion: ReadonlyMap<string, number>;
  /** There are more than were counted. */
  readonly cut: boolean;
}

/** How many conversations are live; null for a key that may not see them. */
export function useLiveConversations(): LiveConversations | null {
  const { may } = useSession();
  const found = useQuery({
    queryKey: ["live-conversations"],
    queryFn: ({ signal }) => reply(client.GET("/v1/live-conversations", { signal })),
    enabled: may("operator", "designer"),
    refetchInterval: 15_000,
  });
  if (typeof found.data !== "object") return null;
  const byFlow = new Map<string, number>();
  const byVersion = new Map<string, number>();
  for (const { flowId, versionId, conversations } of found.data.versions) {
    byFlow.set(flowId, (byFlow.get(flowId) ?? 0) + conversations);
    byVersion.set(versionId, (byVersion.get(versionId) ?? 0) + conversations);
  }
  return { byFlow, byVersion, cut: found.data.cut };
}
