import { type RefCallback, useCallback, useState } from "react";

const told = new WeakMap<Element, () => void>();
/** One for all: a list may watch hundreds. */
const watch = new IntersectionObserver((all) => {
  for (const { isIntersecting, target } of all) if (isIntersecting) told.get(target)?.();
});

/** Whether an element has been in view, and its `ref`: what a long list tells of each is asked for then. */
export function useSeen(): readonly [boolean, RefCallback<HTMLElement>] {
  const [seen, setSeen] = useState(false);
  const watched = useCallback<RefCallback<HTMLElement>>((place) => {
    if (place === null) return;
    told.set(place, () => setSeen(true));
    watch.observe(place);
    return () => watch.unobserve(place);
  }, []);
  return [seen, watched];
}
