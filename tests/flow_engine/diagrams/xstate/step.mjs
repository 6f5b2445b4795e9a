// Reads {machine, runs: [[{event, channel, variables}]]} on the standard input and writes, for every run,
// the active states after each step, beginning with the start: outermost first, keys joined by "/".
import { readFileSync } from "node:fs";
import { initialTransition, setup, transition } from "xstate";

const { machine: configuration, runs } = JSON.parse(readFileSync(0, "utf8"));
const world = { channel: null, variables: new Set() };
const guards = {
  hasVariables: (_, { required }) => required.every((id) => world.variables.has(id)),
  channelIs: (_, { channels }) => channels.includes(world.channel),
  and: (args, { guards: all }) => all.every(({ type, params }) => guards[type](args, params)),
};
const machine = setup({ guards }).createMachine(configuration);

const active = ({ value }) => {
  const path = [];
  for (let at = value; at !== undefined; at = typeof at === "object" ? Object.values(at)[0] : undefined) {
    path.push(typeof at === "object" ? Object.keys(at)[0] : at);
  }
  return path.join("/");
};

const walk = (steps) => {
  let [snapshot] = initialTransition(machine);
  const seen = [active(snapshot)];
  for (const { event, channel, variables } of steps) {
    world.channel = channel;
    world.variables = new Set(variables);
    if (snapshot.status === "active") {
      [snapshot] = transition(machine, snapshot, { type: event });
    }
    seen.push(active(snapshot));
  }
  return seen;
};

process.stdout.write(JSON.stringify(runs.map(walk)));
