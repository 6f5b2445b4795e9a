-- Takes events out of a conversation's outbox, all of them or none, and only those that are still in it:
-- whoever works on the same outbox at the same moment finds them gone.
-- KEYS: outbox webhook_queue stream
-- ARGV: for_webhook queue_lifetime length tenant conversation
-- LISTS: events
-- The stream is given only where one server holds every slot. Events are listed as id, kind, id, kind, ...
local moved = 0
for i = 1, #arg.events, 2 do
  local id = arg.events[i]
  local found = redis.call('XRANGE', key.outbox, id, id)
  if found[1] then
    local event = found[1][2][2]
    -- Out of memory, Redis refuses only a script's first write: an event is added before it is deleted.
    if key.stream then
      redis.call('XADD', key.stream, 'MAXLEN', '~', arg.length, '*',
        'event', event, 'tenant', arg.tenant, 'conversation', arg.conversation, 'kind', arg.events[i + 1])
    end
    if arg.for_webhook == '1' then
      redis.call('XADD', key.webhook_queue, '*', 'event', event)
    end
    redis.call('XDEL', key.outbox, id)
    moved = moved + 1
  end
end
if moved > 0 and arg.for_webhook == '1' then
  redis.call('EXPIRE', key.webhook_queue, arg.queue_lifetime)
end
return moved
