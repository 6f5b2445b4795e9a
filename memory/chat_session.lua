-- What happens to one session of the chat, in one step; the lease is by Redis' own clock.
-- KEYS: state hold frames queue seen
-- ARGV: operation kept_s holder id payload limit topic
-- `payload` is a state, a message or a frame; `limit` a number of messages, of frames, or a lease in ms.
local function live()
  for _, name in pairs(key) do redis.call('EXPIRE', name, arg.kept_s) end
end

if arg.operation == 'put' then
  if redis.call('SISMEMBER', key.seen, arg.id) == 1 then return 'duplicate' end
  if redis.call('LLEN', key.queue) > tonumber(arg.limit) then return 'busy' end
  redis.call('SADD', key.seen, arg.id)
  redis.call('RPUSH', key.queue, arg.payload)
  live()
  return 'queued'
end

local holder = redis.call('HGET', key.hold, 'holder')
if arg.operation == 'hold' then
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local ends = tonumber(redis.call('HGET', key.hold, 'until') or '0')
  if holder and holder ~= arg.holder and now < ends then return 0 end
  redis.call('HSET', key.hold, 'holder', arg.holder, 'until', string.format('%.0f', now + tonumber(arg.limit)))
  redis.call('EXPIRE', key.hold, arg.kept_s)
  return 1
end

if arg.holder ~= '' and holder ~= arg.holder then return -1 end
if arg.operation == 'save' then
  redis.call('SET', key.state, arg.payload)
  live()
elseif arg.operation == 'head' then
  local message = redis.call('LINDEX', key.queue, 0)
  if message then return message end
  redis.call('HDEL', key.hold, 'holder', 'until')
  return false
elseif arg.operation == 'done' then
  redis.call('LPOP', key.queue)
  redis.call('SET', key.state, arg.payload)
  live()
elseif arg.operation == 'append' then
  local seq = string.format('%.0f', tonumber(redis.call('HGET', key.hold, 'seq') or '0') + 1)
  -- Heard once this script has ended; a user who may not is refused here, before anything is written.
  redis.call('PUBLISH', arg.topic, seq .. '\n' .. arg.payload)
  redis.call('HSET', key.hold, 'seq', seq)
  redis.call('XADD', key.frames, 'MAXLEN', arg.limit, seq .. '-0', 'frame', arg.payload)
  redis.call('EXPIRE', key.hold, arg.kept_s)
  redis.call('EXPIRE', key.frames, arg.kept_s)
  return tonumber(seq)
elseif arg.operation == 'waits' then
  return redis.call('EXISTS', key.queue)
elseif arg.operation == 'line' then
  return redis.call('LRANGE', key.queue, 0, -1)
elseif arg.operation == 'after' then
  return redis.call('XRANGE', key.frames, arg.id .. '-0', '+')
end
return 1
