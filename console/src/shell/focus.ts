const PARTS = "section, fieldset, form, dialog, main, [tabindex]";

/** As the `ref` of a page: what has the focus and goes away does not take it along. The part of the page around it has
 * it then, so that Tab goes on from there. */
export function holdFocus(page: HTMLElement): () => void {
  let last: readonly Element[] = [];
  const comes = ({ target }: FocusEvent): void => {
    const path: Element[] = [];
    for (let each = target as Element | null; each !== null; each = each.parentElement) path.push(each);
    last = path;
  };
  // Whoever clicks beside everything wants nothing to have it. What is removed is so by the end of the task.
  const goes = (): void =>
    queueMicrotask(() => {
      if (last[0]?.isConnected && !holds()) last = [];
    });
  const changes = new MutationObserver(() => {
    if (last[0]?.isConnected !== false || holds()) return;
    const part = last.find((each) => each.isConnected && each.matches(PARTS)) as HTMLElement | undefined;
    last = [];
    if (part?.hasAttribute("tabindex") === false) part.tabIndex = -1;
    part?.focus({ preventScroll: true });
  });
  page.addEventListener("focusin", comes);
  page.addEventListener("focusout", goes);
  changes.observe(page, { childList: true, subtree: true });
  return () => changes.disconnect();
}

/** Whether anything has the focus. */
function holds(): boolean {
  return document.activeElement !== document.body;
}
