-- Appends events to the reporting stream, all of them or none.
-- KEYS: stream
-- ARGV: length tenant conversation
-- LISTS: events
-- Events are listed as event, kind, event, kind, ...
for i = 1, #arg.events, 2 do
  redis.call('XADD', key.stream, 'MAXLEN', '~', arg.length, '*',
    'event', arg.events[i], 'tenant', arg.tenant, 'conversation', arg.conversation, 'kind', arg.events[i + 1])
end
return #arg.events
