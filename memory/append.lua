-- Appends events to the reporting stream: all of them, or none and 0 where the tenant's share is used up.
-- KEYS: stream shares
-- ARGV: length kept_s shares_lifetime tenant conversation
-- LISTS: events
-- Events are listed as event, kind, event, kind, ... Those older than `kept_s` seconds go. How much of the stream each tenant has taken in the
-- present minute is in the hash `shares`. While several tenants have events, none takes more than its part.
local count = #arg.events / 2
local taken = tonumber(redis.call('HGET', key.shares, arg.tenant) or '0')
local tenants = redis.call('HLEN', key.shares)
if taken > 0 and tenants > 1 and taken + count > tonumber(arg.length) / tenants then
  return 0
end
redis.call('HINCRBY', key.shares, arg.tenant, count)
redis.call('EXPIRE', key.shares, arg.shares_lifetime)
for i = 1, #arg.events, 2 do
  redis.call('XADD', key.stream, 'MAXLEN', '~', arg.length, '*',
    'event', arg.events[i], 'tenant', arg.tenant, 'conversation', arg.conversation, 'kind', arg.events[i + 1])
end
redis.call('XTRIM', key.stream, 'MINID', (redis.call('TIME')[1] - arg.kept_s) * 1000)
return count
