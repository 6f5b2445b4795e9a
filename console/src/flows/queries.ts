import { queryOptions } from "@tanstack/react-query";
import { client, reply, type Schemas } from "../api/client";

export type FlowRow = Omit<Schemas["FlowReply"], "templateId">;
export type VersionRow = Schemas["VersionRowReply"];

export const flowsQuery = queryOptions({
  queryKey: ["flows"],
  queryFn: ({ signal }) => reply(client.GET("/v1/flows", { signal })),
});
