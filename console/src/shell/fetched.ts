/** A part of the console that is fetched when it is first shown. */
import { ROOT } from "../api/early";

const AGAIN_AFTER_MS = 1_000;

/** The service answers and has it no more: it is of another release than this page. */
export class Outdated extends Error {
  override name = "Outdated";
}

/** Fetched until it is there, for React would keep the failure for good. Throws `Outdated`. */
export async function fetched<Part>(fetchIt: () => Promise<Part>): Promise<Part> {
  for (;;) {
    try {
      return await fetchIt();
    } catch {
      const answers = await fetch(`${ROOT}/health/live`).then(
        (response) => response.ok, // not that of a proxy before a service that is away
        () => false,
      );
      if (answers)
        return await fetchIt().catch((error) => {
          throw new Outdated(String(error));
        });
      await new Promise((resolve) => setTimeout(resolve, AGAIN_AFTER_MS));
    }
  }
}
