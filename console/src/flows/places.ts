/** Places of the document in its forms: an element has the name of its place, within the place around it, as `data-at`. */

/** Unfolds what a path leads to, as far as the form has it, and brings it into view. Null where it has nothing of it. */
export function shownPlace(form: HTMLElement | null, path: readonly string[]): HTMLElement | null {
  const all = [...(form?.querySelectorAll<HTMLElement>("[data-at]") ?? [])];
  let place: HTMLElement | null = null;
  for (const name of path) {
    const around: HTMLElement | null = place;
    const found: HTMLElement | undefined = all.find(
      (each) => each.dataset.at === name && (each.parentElement?.closest("[data-at]") ?? null) === around,
    );
    if (found === undefined) break;
    place = found;
  }
  for (let each: HTMLElement | null = place; each !== null && each !== form; each = each.parentElement)
    if (each instanceof HTMLDetailsElement) each.open = true;
  place?.scrollIntoView({ block: "nearest" });
  return place;
}

/** Shows a place and has the focus in it. */
export function goTo(form: HTMLElement | null, path: readonly string[]): void {
  const place = shownPlace(form, path) ?? form;
  for (const controls of ["input, select, textarea, .cm-content", "button"]) {
    const control = place?.querySelector<HTMLElement>(controls);
    if (control) {
      control.focus();
      return;
    }
  }
}
