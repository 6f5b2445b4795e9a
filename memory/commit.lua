-- Commits one step of a conversation as a whole, or leaves everything as it was.
-- KEYS: snapshot, tenant, mined, tools, previousContacts, utterances, messages, outbox, stored reply
--       [, definition, jobs]: only where one server holds every slot
-- ARGV is read in order by take(); every value is opaque here: a JSON round trip in Lua would turn
-- [] into {} and lose digits of large integers.
local position = 0
local function take()
  position = position + 1
  return ARGV[position]
end
local function take_number()
  return tonumber(take())
end

local expected_revision = take()
local expected_memory_revision = take()
local lifetime = take()
local definition_lifetime = take()
local reply_prefix = take()   -- "" when the request carries no idempotency key
local reply_lifetime = take()
local reply_head = take()
local reply_has_tail = take()
local reply_tail = take()
local now = take()
local new_revision = take()   -- "" when the session stays as it is
local session = take()
local version_id = take()
local message_id = take()     -- "" when no turn is stored
local turn = take()
local turns_kept = take_number()
local reply_when_seen = take()
local is_user_turn = take()
local expected_mining_revision = take()
local mining = take()         -- "" when the state of mining stays as it is

if reply_prefix ~= '' then
  local reply = redis.call('GET', KEYS[9])
  if reply then
    return {'replayed', reply}
  end
end
if message_id ~= '' and redis.call('HEXISTS', KEYS[7], message_id) == 1 then
  if reply_prefix ~= '' then
    redis.call('SET', KEYS[9], reply_when_seen, 'EX', reply_lifetime)
  end
  return {'seen'}
end
if (redis.call('HGET', KEYS[1], 'revision') or '0') ~= expected_revision then
  return {'lost'}
end
local memory_revision = redis.call('HGET', KEYS[1], 'memoryRevision') or '0'
if expected_memory_revision ~= '' and memory_revision ~= expected_memory_revision then
  return {'lost'}
end
if expected_mining_revision ~= ''
  and (redis.call('HGET', KEYS[1], 'miningRevision') or '0') ~= expected_mining_revision then
  return {'lost'}
end

-- Before the DEL of a reset: out of memory, Redis refuses only a script's first write, and never a DEL.
if new_revision ~= '' then
  redis.call('HSET', KEYS[1], 'revision', new_revision, 'versionId', version_id, 'session', session)
end

local reset = take()
if reset == '1' then
  redis.call('DEL', KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7])
  redis.call('HDEL', KEYS[1], 'memoryUpdatedAt', 'lastUserTurn', 'mining', 'miningRevision')
  redis.call('SET', KEYS[2], take())
  for _ = 1, take_number() do
    local field, entry = take(), take()
    redis.call('HSET', KEYS[3], field, entry)
    redis.call('HSET', KEYS[4], field, entry)
  end
  if expected_revision == '0' then
    redis.call('HSET', KEYS[1], 'memoryRevision', '0')
  else
    redis.call('HINCRBY', KEYS[1], 'memoryRevision', 1)
  end
end
for _ = 1, take_number() do
  local field, entry = take(), take()
  redis.call('HSETNX', KEYS[3], field, entry)
  redis.call('HSETNX', KEYS[4], field, entry)
end
local writes = take_number()
for _ = 1, writes do
  redis.call('HSET', KEYS[4], take(), take())
end
local mined = take_number()
for _ = 1, mined do
  redis.call('HSET', KEYS[3], take(), take())
end
if writes + mined > 0 then
  redis.call('HINCRBY', KEYS[1], 'memoryRevision', 1)
  redis.call('HSET', KEYS[1], 'memoryUpdatedAt', now)
end
if mining ~= '' then
  redis.call('HSET', KEYS[1], 'mining', mining)
  redis.call('HINCRBY', KEYS[1], 'miningRevision', 1)
end
if take() == '1' then
  redis.call('DEL', KEYS[5])  -- never the first write: only a concluding commit asks for it
end
for _ = 1, take_number() do
  redis.call('RPUSH', KEYS[5], take())
end
if message_id ~= '' then
  redis.call('HSET', KEYS[7], message_id, '1')
  redis.call('RPUSH', KEYS[6], turn)
  redis.call('LTRIM', KEYS[6], -turns_kept, -1)
  if is_user_turn == '1' then
    redis.call('HSET', KEYS[1], 'lastUserTurn', message_id)
  end
end
for _ = 1, take_number() do
  redis.call('XADD', KEYS[8], '*', 'event', take())
end

memory_revision = redis.call('HGET', KEYS[1], 'memoryRevision')
if reply_prefix ~= '' then
  local body = reply_head
  if reply_has_tail == '1' then
    body = reply_head .. memory_revision .. reply_tail
  end
  redis.call('SET', KEYS[9], reply_prefix .. body, 'EX', reply_lifetime)
end
for key = 1, 8 do
  redis.call('EXPIRE', KEYS[key], lifetime)
end
local trace = take()          -- "" when nothing is traced
for _ = 1, take_number() do
  local due, job = take(), take()
  if KEYS[11] then
    redis.call('ZADD', KEYS[11], due, job)
  end
  if trace ~= '' then
    redis.call('HSET', KEYS[1], 'trace:' .. string.match(job, '^%a+'), trace)
  end
end
local definition_present = 1
if KEYS[10] then
  definition_present = redis.call('EXPIRE', KEYS[10], definition_lifetime)
end
return {'committed', memory_revision, definition_present}
