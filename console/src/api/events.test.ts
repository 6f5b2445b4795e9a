import { describe, expect, it } from "vitest";
import { EventReader } from "./events";

describe("server-sent events", () => {
  it("gives whole events, whatever pieces they come in", () => {
    const reader = new EventReader();
    const text = ': open\n\nid: 3\ndata: {"seq":3}\n\nevent: end\ndata: {"reason":"closed"}\n\n';
    const found = [...text].flatMap((piece) => reader.take(piece));
    expect(found).toEqual([
      { event: "message", id: "3", data: '{"seq":3}' },
      { event: "end", id: null, data: '{"reason":"closed"}' },
    ]);
  });

  it("joins lines of data, and takes line ends of Windows", () => {
    expect(new EventReader().take("data: a\r\ndata: b\r\n\r\n")).toEqual([
      { event: "message", id: null, data: "a\nb" },
    ]);
  });

  it("keeps what is not whole", () => {
    const reader = new EventReader();
    expect(reader.take("data: a\n")).toEqual([]);
    expect(reader.take("\n")).toHaveLength(1);
  });
});
