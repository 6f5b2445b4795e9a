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

/** The id of the task or connection that the keyboard is at, where the panel or the frame hides it. */
export function hidden(canvas: HTMLElement | null): string | undefined {
  const at = document.activeElement;
  const graph = ".react-flow__node:focus-visible, .react-flow__edge:focus-visible";
  if (canvas === null || !(at instanceof HTMLElement || at instanceof SVGElement) || !at.matches(graph))
    return undefined;
  const frame = canvas.getBoundingClientRect();
  const right = canvas.nextElementSibling?.getBoundingClientRect().left ?? frame.right;
  const box = at.getBoundingClientRect();
  // Of a task the middle has to be seen, of a connection, which may be longer than all that is in view, any part.
  const half = at instanceof HTMLElement ? box.width / 2 : 0;
  const aside = box.right - half < frame.left || box.left + half > right;
  return aside || box.bottom < frame.top || box.top > frame.bottom ? at.dataset.id : undefined;
}
