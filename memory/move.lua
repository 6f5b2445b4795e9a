-- Takes events out of a conversation's outbox, all of them or none, and only those that are still in it:
-- whoever works on the same outbox at the same moment finds them gone. An outbox without events and without
-- its conversation goes too.
-- KEYS: outbox webhook_queue snapshot stream shares
-- ARGV: for_webhook queue_lifetime length kept_s shares_lifetime tenant conversation
-- LISTS: events
-- The stream and its shares are given only where one server holds every slot; -1 is returned where the share
-- is used up, see append.lua. Events are listed as id, kind, event, ...; the event is "" where it goes on as it is.
local count = #arg.events / 3
if key.stream then
  local taken = tonumber(redis.call('HGET', key.shares, arg.tenant) or '0')
  local tenants = redis.call('HLEN', key.shares)
  if taken > 0 and tenants > 1 and taken + count > tonumber(arg.length) / tenants then
    return -1
  end
end
local moved = 0
for i = 1, #arg.events, 3 do
  local id = arg.events[i]
  local found = redis.call('XRANGE', key.outbox, id, id)
  if found[1] then
    local event = arg.events[i + 2] ~= '' and arg.events[i + 2] or found[1][2][2]
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
if moved > 0 then
  if arg.for_webhook == '1' then
    redis.call('EXPIRE', key.webhook_queue, arg.queue_lifetime)
  end
  if key.stream then
    redis.call('HINCRBY', key.shares, arg.tenant, moved)
    redis.call('EXPIRE', key.shares, arg.shares_lifetime)
    redis.call('XTRIM', key.stream, 'MINID', (redis.call('TIME')[1] - arg.kept_s) * 1000)
  end
  if redis.call('XLEN', key.outbox) == 0 and redis.call('EXISTS', key.snapshot) == 0 then
    redis.call('DEL', key.outbox)
  end
end
return moved
