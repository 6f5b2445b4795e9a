import type { ReactNode } from "react";

interface TileProps {
  readonly label: string;
  readonly value: string;
  readonly wrong?: boolean;
}

/** One figure with its name. */
export function Tile({ label, value, wrong = false }: TileProps): ReactNode {
  return (
    <section className={wrong ? "tile wrong" : "tile"} aria-label={label}>
      <span className="quiet">{label}</span>
      <strong>{value}</strong>
    </section>
  );
}
