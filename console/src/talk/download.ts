/** A file for whoever looks at the page. YAML. */
export function download(yaml: string, name: string): void {
  const address = URL.createObjectURL(new Blob([yaml], { type: "application/yaml" }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  URL.revokeObjectURL(address);
}
