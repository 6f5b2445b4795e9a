-- Takes events out of a conversation's outbox, all of them or none, and only those that are still in it:
-- whoever works on the same outbox at the same moment finds them gone.
-- KEYS: outbox, webhook's queue [, reporting stream]: only where one server holds every slot
-- ARGV: keep for the webhook "1" or "0", queue's lifetime, stream's length, tenant, conversation,
--       id, kind, id, kind, ...
local moved = 0
for i = 6, #ARGV, 2 do
  local found = redis.call('XRANGE', KEYS[1], ARGV[i], ARGV[i])
  if found[1] then
    local event = found[1][2][2]
    -- Out of memory, Redis refuses only a script's first write: an event is added before it is deleted.
    if KEYS[3] then
      redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[3], '*',
        'event', event, 'tenant', ARGV[4], 'conversation', ARGV[5], 'kind', ARGV[i + 1])
    end
    if ARGV[1] == '1' then
      redis.call('XADD', KEYS[2], '*', 'event', event)
    end
    redis.call('XDEL', KEYS[1], ARGV[i])
    moved = moved + 1
  end
end
if moved > 0 and ARGV[1] == '1' then
  redis.call('EXPIRE', KEYS[2], ARGV[2])
end
return moved
