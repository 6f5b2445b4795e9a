/** Where the pages of things are; ids may hold anything. */
export function flowAddress(flowId: string): string {
  return `/flows/${encodeURIComponent(flowId)}`;
}

export function versionAddress(flowId: string, versionId: string): string {
  return `${flowAddress(flowId)}/versions/${encodeURIComponent(versionId)}`;
}

export function conversationAddress(id: string): string {
  return `/conversations/${encodeURIComponent(id)}`;
}
