import { type RefCallback, useCallback, useState } from "react";

/** Whether an element has been in view, and its `ref`: what a long list tells of each is asked for then. */
export function useSeen(): readonly [boolean, RefCallback<HTMLElement>] {
  const [seen, setSeen] = useState(false);
  const watched = useCallback<RefCallback<HTMLElement>>((place) => {
    if (place === null) return;
    const watch = new IntersectionObserver((all) => all.some((each) => each.isIntersecting) && setSeen(true));
    watch.observe(place);
    return () => watch.disconnect();
  }, []);
  return [seen, watched];
}
