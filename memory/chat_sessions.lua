-- What happens to one session of the chat, in one step: see memory/chat_sessions.py.
-- KEYS: all of one session, so that they share a slot. ARGV: the operation, then its own.
local STATE, HOLD, FRAMES, QUEUE, SEEN = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local operation, kept_s = ARGV[1], tonumber(ARGV[2])

local function live()
  for _, key in ipairs(KEYS) do redis.call('EXPIRE', key, kept_s) end
end

local function holds(holder)
  return redis.call('HGET', HOLD, 'holder') == holder
end

if operation == 'save' then
  local holder, state = ARGV[3], ARGV[4]
  if not holds(holder) then return -1 end
  redis.call('SET', STATE, state)
  live()
  return 1
elseif operation == 'put' then
  local id, message, most = ARGV[3], ARGV[4], tonumber(ARGV[5])
  if redis.call('SISMEMBER', SEEN, id) == 1 then return 'duplicate' end
  if redis.call('LLEN', QUEUE) > most then return 'busy' end
  redis.call('SADD', SEEN, id)
  redis.call('RPUSH', QUEUE, message)
  live()
  return 'queued'
elseif operation == 'hold' then
  local holder, lease_ms = ARGV[3], tonumber(ARGV[4])
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local current = redis.call('HGET', HOLD, 'holder')
  local til = tonumber(redis.call('HGET', HOLD, 'until') or '0')
  if current and current ~= holder and now < til then return 0 end
  redis.call('HSET', HOLD, 'holder', holder, 'until', string.format('%.0f', now + lease_ms))
  redis.call('EXPIRE', HOLD, kept_s)
  return 1
elseif operation == 'head' then
  local holder = ARGV[3]
  if not holds(holder) then return -1 end
  local message = redis.call('LINDEX', QUEUE, 0)
  if message then return message end
  redis.call('HDEL', HOLD, 'holder', 'until')
  return false
elseif operation == 'done' then
  local holder = ARGV[3]
  if not holds(holder) then return -1 end
  redis.call('LPOP', QUEUE)
  live()
  return 1
elseif operation == 'append' then
  local holder, frame, most, topic = ARGV[3], ARGV[4], ARGV[5], ARGV[6]
  if holder ~= '' and not holds(holder) then return -1 end
  local seq = redis.call('HINCRBY', HOLD, 'seq', 1)
  redis.call('XADD', FRAMES, 'MAXLEN', most, string.format('%.0f-0', seq), 'frame', frame)
  redis.call('EXPIRE', HOLD, kept_s)
  redis.call('EXPIRE', FRAMES, kept_s)
  redis.call('PUBLISH', topic, string.format('%.0f', seq) .. '\n' .. frame)
  return seq
end
return redis.error_reply('no operation ' .. operation)
