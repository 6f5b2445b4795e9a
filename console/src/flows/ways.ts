/** How a connection is drawn, and where on it its label has room. Pure. */
import { GAP, NODE } from "./layout";

export interface Way {
  readonly path: string;
  readonly label: { readonly x: number; readonly y: number };
  /** How wide the label can be without lying on a task. */
  readonly room: number;
}

const SHORTEST = 40;
const MARGIN = 20;
/** How far what leads back goes on before it turns. */
const OUT = 70;

/** What leads on is a curve, its label in the gap before the task that it leads to. What leads back passes below the
 * tasks between: straight through them it would be taken for a way on, its label over that one's. */
export function wayOf(sx: number, sy: number, tx: number, ty: number): Way {
  const far = tx - sx;
  if (far > SHORTEST) {
    // With its handles at the thirds a curve's x grows evenly.
    const at = Math.max(0.5, 1 - GAP.x / 2 / far);
    return {
      path: `M${sx},${sy} C${sx + far / 3},${sy} ${tx - far / 3},${ty} ${tx},${ty}`,
      label: { x: sx + far * at, y: sy + (ty - sy) * at * at * (3 - 2 * at) },
      room: Math.min(far, GAP.x) - MARGIN,
    };
  }
  const low = Math.max(sy, ty) + NODE.height + Math.min(120, Math.abs(far) / 12);
  const middle = (sx + tx) / 2;
  const [right, left] = [sx + OUT, tx - OUT];
  return {
    path: `M${sx},${sy} C${right},${sy} ${right},${low} ${middle},${low} C${left},${low} ${left},${ty} ${tx},${ty}`,
    label: { x: middle, y: low },
    room: Math.max(NODE.width, -far),
  };
}

const CHARACTER = 6.2;
const LONGEST = 42;

/** As much of a label as there is room for; nothing where a word of it would not be left. */
export function cutTo(room: number, label: string): string {
  const most = Math.min(LONGEST, Math.floor(room / CHARACTER));
  if (label.length <= most) return label;
  return most < 4 ? "" : `${label.slice(0, most - 1)}…`;
}
