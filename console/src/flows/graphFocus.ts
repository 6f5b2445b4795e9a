/** The way of the focus between a graph and the panel of what is chosen in it, which stands beside it. */

/** From the graph into the panel: to the form of a connection that is chosen, else to the first such control. Whether it
 * is there. */
export function toPanel(canvas: HTMLElement | null, control: string): boolean {
  const panel = canvas?.nextElementSibling;
  const place =
    panel?.querySelector<HTMLElement>(`.chosen ${control}`) ?? panel?.querySelector<HTMLElement>(control);
  place?.focus();
  return place !== undefined && place === document.activeElement;
}

/** From the panel back to what is chosen in the graph. Whether it is seen there. */
export function toChosen(panel: HTMLElement | null): boolean {
  const graph = panel?.previousElementSibling;
  const chosen = graph?.querySelector<SVGElement | HTMLElement>(
    ".react-flow__node.selected, .react-flow__edge.selected",
  );
  chosen?.focus({ preventScroll: true });
  return chosen !== undefined && chosen === document.activeElement;
}

/** The task that the keyboard is at, where the panel hides it. */
export function behindPanel(canvas: HTMLElement | null): string | undefined {
  const at = document.activeElement;
  const panel = canvas?.nextElementSibling;
  if (!panel || !(at instanceof HTMLElement) || !at.matches(".react-flow__node:focus-visible"))
    return undefined;
  const { left, width } = at.getBoundingClientRect();
  return left + width / 2 > panel.getBoundingClientRect().left ? at.dataset.id : undefined;
}
