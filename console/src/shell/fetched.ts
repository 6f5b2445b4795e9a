/** A part of the console that is fetched when it is first shown. */

const AGAIN_AFTER_MS = 1_000;

/** Fetched until it is there, for React would keep the failure for good. Throws where the service answers without it. */
export async function fetched<Part>(fetchIt: () => Promise<Part>): Promise<Part> {
  for (;;) {
    try {
      return await fetchIt();
    } catch {
      const answers = await fetch("/health/live").then(
        () => true,
        () => false,
      );
      if (answers) return await fetchIt();
      await new Promise((resolve) => setTimeout(resolve, AGAIN_AFTER_MS));
    }
  }
}
