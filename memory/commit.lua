-- Commits one step of a conversation as a whole, or leaves everything as it was.
-- KEYS: snapshot tenant mined tools previous utterances messages journal segments outbox reply
-- KEYS: definition jobs index
-- ARGV: expected_revision lifetime definition_lifetime stamp
-- OPTIONS: expected_memory_revision expected_mining_revision expected_state now
-- OPTIONS: reply_prefix reply_lifetime reply_head reply_has_tail reply_tail reply_when_seen
-- OPTIONS: new_revision session version_id message_id message turn turns_kept turn_bytes_kept messages_kept
-- OPTIONS: is_user_turn mining
-- OPTIONS: former_name former forget_former
-- OPTIONS: reset new_tenant rewrite_previous trace notice_channel notice_head
-- OPTIONS: forked forked_turns
-- OPTIONS: journal segment_entries segment_bytes journal_bytes updated_at
-- OPTIONS: head origin index_score index_member index_kept
-- WITH: state_of whole_of
-- LISTS: new_variables added_variables set_tools set_mined previous_contacts events jobs
-- The definition, the jobs and the index are given only where one server holds every slot. What is not wanted
-- is left out: an expected revision, the reply where the request carries no idempotency key, a session that
-- stays as it is, a message, the state of mining, a trace. Variables are listed as id, entry, id, entry, ...;
-- jobs as due time, name, ... Every value is opaque here: a JSON round trip in Lua would turn [] into {} and
-- lose digits of large integers.
-- `message` is what a message is known by: of its contact, and numbered in the order of arrival, so that the
-- oldest are forgotten once there are more than `messages_kept`. Earlier releases knew it by its id alone,
-- "1". Whoever listens on the channel is told of each change of the memory. `stamp` is of this commit alone;
-- the answer tells the state before and after it. Who expected a state, and lost, gets the newer one.
-- `journal` is the commit's entry, "" for none. Entries are numbered without gaps and kept in segments; the
-- first of a segment stands beside the whole state before it, so the oldest segments make room as wholes.
-- `journaled` is the stamp of the last commit with an entry: where another came after it, a segment begins.
-- `head` is what a list tells of the conversation, `origin` what of that it keeps from its start; both ""
-- where they stay. The index has the newest `index_kept` conversations of a tenant by the ms of their start.
-- `forked` is the whole state that a new conversation begins with, as `whole_state` writes it, `forked_turns` its
-- messages in netstrings: what one is known by, the message, ...
local state = {
  key.snapshot, key.tenant, key.mined, key.tools, key.previous, key.utterances, key.messages,
  key.journal, key.segments, key.outbox
}
local function revision(field)
  return redis.call('HGET', key.snapshot, field) or '0'
end
local spread, AT_ONCE = table.unpack or unpack, 1000
local function set_fields(hash, flat)
  for i = 1, #flat, AT_ONCE do
    redis.call('HSET', hash, spread(flat, i, math.min(i + AT_ONCE - 1, #flat)))
  end
end
local function add_fields(hash, flat)
  for i = 1, #flat, 2 do
    redis.call('HSETNX', hash, flat[i], flat[i + 1])
  end
end

local function remember_message()
  local number = redis.call('HINCRBY', key.snapshot, 'messages', 1) + 1
  redis.call('HSET', key.messages, arg.message, number)
  local kept = tonumber(arg.messages_kept)
  if redis.call('HLEN', key.messages) > kept then
    local known = redis.call('HGETALL', key.messages)
    for i = 1, #known, 2 do
      if tonumber(known[i + 1]) <= number - kept / 2 then
        redis.call('HDEL', key.messages, known[i])
      end
    end
  end
end

-- The newest are kept, as many and as large as is allowed. Earlier releases did not count their bytes.
local function remember_turn()
  if redis.call('HEXISTS', key.snapshot, 'turnBytes') == 0 then
    local bytes = 0
    for _, turn in ipairs(redis.call('LRANGE', key.utterances, 0, -1)) do
      bytes = bytes + #turn
    end
    redis.call('HSET', key.snapshot, 'turnBytes', bytes)
  end
  local count = redis.call('RPUSH', key.utterances, arg.turn)
  local bytes = redis.call('HINCRBY', key.snapshot, 'turnBytes', #arg.turn)
  while count > tonumber(arg.turns_kept) or count > 1 and bytes > tonumber(arg.turn_bytes_kept) do
    local oldest = redis.call('LPOP', key.utterances)
    count = count - 1
    bytes = redis.call('HINCRBY', key.snapshot, 'turnBytes', -#oldest)
  end
end

-- Netstrings: six fields of the snapshot, the tenant, and three lists with their lengths before them.
local function whole_state()
  local parts = redis.call('HMGET', key.snapshot, 'session', 'memoryRevision', 'memoryUpdatedAt', 'lastUserTurn',
    'mining', 'miningRevision')
  parts[7] = redis.call('GET', key.tenant)
  for i = 1, 7 do
    parts[i] = parts[i] or ''
  end
  local lists = {
    redis.call('HGETALL', key.mined), redis.call('HGETALL', key.tools), redis.call('LRANGE', key.previous, 0, -1)
  }
  for _, list in ipairs(lists) do
    parts[#parts + 1] = tostring(#list)
    for _, part in ipairs(list) do
      parts[#parts + 1] = part
    end
  end
  for i, part in ipairs(parts) do
    parts[i] = #part .. ':' .. part
  end
  return table.concat(parts)
end

local function parts_of(netstrings)
  local parts, at = {}, 1
  while at <= #netstrings do
    local colon = string.find(netstrings, ':', at, true)
    local last = colon + tonumber(string.sub(netstrings, at, colon - 1))
    parts[#parts + 1] = string.sub(netstrings, colon + 1, last)
    at = last + 1
  end
  return parts
end

-- Messages are numbered as `remember_message` does.
local function begin_forked()
  local parts, turns, at = parts_of(arg.forked), parts_of(arg.forked_turns), 8
  local function listed()
    local list = {}
    for i = 1, tonumber(parts[at]) do
      list[i] = parts[at + i]
    end
    at = at + 1 + #list
    return list
  end
  for i, field in ipairs({'memoryRevision', 'memoryUpdatedAt', 'lastUserTurn', 'mining', 'miningRevision'}) do
    if parts[i + 1] ~= '' then
      redis.call('HSET', key.snapshot, field, parts[i + 1])
    end
  end
  redis.call('SET', key.tenant, parts[7])
  set_fields(key.mined, listed())
  set_fields(key.tools, listed())
  for _, contact in ipairs(listed()) do
    redis.call('RPUSH', key.previous, contact)
  end
  for i = 1, #turns, 2 do
    redis.call('RPUSH', key.utterances, turns[i + 1])
    redis.call('HSET', key.messages, turns[i], redis.call('HINCRBY', key.snapshot, 'messages', 1) + 1)
  end
end

local function place_in_journal()
  local known = redis.call('HMGET', key.snapshot, 'seq', 'segment', 'segmentBytes', 'baseBytes', 'journaled', 'stamp',
    'revision')
  local place = {
    seq = tonumber(known[1] or '0') + 1, segment = tonumber(known[2] or '0'),
    bytes = tonumber(known[3] or '0'), base_bytes = tonumber(known[4] or '0')
  }
  if not known[1] or known[5] ~= known[6] or place.seq - place.segment >= tonumber(arg.segment_entries)
    or place.bytes > tonumber(arg.segment_bytes) + place.base_bytes then
    place.base = known[7] and whole_state() or arg.forked
  end
  return place
end

local function begin_segment(place)
  if place.segment > 0 then
    redis.call('RPUSH', key.segments, place.segment .. ':' .. place.bytes + place.base_bytes)
  end
  place.segment, place.bytes, place.base_bytes = place.seq, 0, #place.base
  local ended = redis.call('LRANGE', key.segments, 0, -1)
  local total, kept = 0, place.seq
  for i = #ended, 1, -1 do
    local first, bytes = string.match(ended[i], '^(%d+):(%d+)$')
    total = total + bytes
    if total > tonumber(arg.journal_bytes) then
      if i == #ended then
        redis.call('DEL', key.segments)
      else
        redis.call('LTRIM', key.segments, i, -1)
      end
      redis.call('XTRIM', key.journal, 'MINID', kept .. '-0')
      break
    end
    kept = first
  end
end

local function write_journal(place, memory_revision)
  if place.base then
    begin_segment(place)
  end
  local entry = {key.journal, place.seq .. '-0', 'entry', arg.journal, 'memoryRevision', memory_revision}
  if place.base and place.base ~= '' then
    entry[7], entry[8] = 'base', place.base
  end
  redis.call('XADD', spread(entry))
  redis.call('HSET', key.snapshot, 'seq', place.seq, 'segment', place.segment,
    'segmentBytes', place.bytes + #arg.journal, 'baseBytes', place.base_bytes, 'journaled', arg.stamp,
    'updatedAt', arg.updated_at)
end

local function list_conversation()
  if key.index and (arg.origin ~= '' or redis.call('HEXISTS', key.snapshot, 'head') == 0) then
    redis.call('ZADD', key.index, arg.index_score, arg.index_member)
    redis.call('ZREMRANGEBYRANK', key.index, 0, -1 - arg.index_kept)
  end
  redis.call('HSET', key.snapshot, 'head', arg.head)
  if arg.origin ~= '' then
    redis.call('HSET', key.snapshot, 'origin', arg.origin)
  end
end

if arg.reply_prefix ~= '' then
  local reply = redis.call('GET', key.reply)
  if reply then
    return {'replayed', reply}
  end
end
if arg.message_id ~= '' and (redis.call('HEXISTS', key.messages, arg.message) == 1
  or redis.call('HGET', key.messages, arg.message_id) == '1') then
  if arg.reply_prefix ~= '' then
    redis.call('SET', key.reply, arg.reply_when_seen, 'EX', arg.reply_lifetime)
  end
  return {'seen'}
end
local state_before = state_of(key)
if arg.expected_state ~= '' and state_before ~= arg.expected_state then
  return {'lost', state_before, whole_of(key)}
end
if revision('revision') ~= arg.expected_revision
  or arg.expected_memory_revision ~= '' and revision('memoryRevision') ~= arg.expected_memory_revision
  or arg.expected_mining_revision ~= '' and revision('miningRevision') ~= arg.expected_mining_revision then
  return {'lost'}
end

local place = arg.journal ~= '' and place_in_journal() or nil

-- Before the DEL of a reset: out of memory, Redis refuses only a script's first write, and never a DEL.
if arg.new_revision ~= '' then
  redis.call('HSET', key.snapshot,
    'revision', arg.new_revision, 'versionId', arg.version_id, 'session', arg.session)
end
if arg.reset == '1' then
  redis.call('DEL', key.tenant, key.mined, key.tools, key.previous, key.utterances, key.messages)
  redis.call('HDEL', key.snapshot, 'memoryUpdatedAt', 'lastUserTurn', 'mining', 'miningRevision', 'turnBytes')
  redis.call('SET', key.tenant, arg.new_tenant)
  set_fields(key.mined, arg.new_variables)
  set_fields(key.tools, arg.new_variables)
  if arg.expected_revision == '0' then
    redis.call('HSET', key.snapshot, 'memoryRevision', '0')
  else
    redis.call('HINCRBY', key.snapshot, 'memoryRevision', 1)
  end
end
if arg.forked ~= '' then
  begin_forked()
end
add_fields(key.mined, arg.added_variables)
add_fields(key.tools, arg.added_variables)
set_fields(key.tools, arg.set_tools)
set_fields(key.mined, arg.set_mined)
if #arg.set_tools + #arg.set_mined > 0 then
  redis.call('HINCRBY', key.snapshot, 'memoryRevision', 1)
  redis.call('HSET', key.snapshot, 'memoryUpdatedAt', arg.now)
end
if arg.mining ~= '' then
  redis.call('HSET', key.snapshot, 'mining', arg.mining)
  redis.call('HINCRBY', key.snapshot, 'miningRevision', 1)
end
if arg.rewrite_previous == '1' then
  redis.call('DEL', key.previous)  -- never the first write: only a concluding commit asks for it
end
for _, contact in ipairs(arg.previous_contacts) do
  redis.call('RPUSH', key.previous, contact)
end
if arg.message_id ~= '' then
  remember_message()
  remember_turn()
  if arg.is_user_turn == '1' then
    redis.call('HSET', key.snapshot, 'lastUserTurn', arg.message)
  end
end
if arg.former_name ~= '' then
  redis.call('HSET', key.snapshot, 'former:' .. arg.former_name, arg.former)
end
if arg.forget_former ~= '' then
  redis.call('HDEL', key.snapshot, 'former:' .. arg.forget_former)
end
if redis.call('HEXISTS', key.snapshot, 'revision') == 1 then
  redis.call('HSET', key.snapshot, 'stamp', arg.stamp)
end
for _, event in ipairs(arg.events) do
  redis.call('XADD', key.outbox, '*', 'event', event)
end

local memory_revision = redis.call('HGET', key.snapshot, 'memoryRevision')
if place then
  write_journal(place, memory_revision)
end
if arg.head ~= '' then
  list_conversation()
end
if arg.reply_prefix ~= '' then
  local body = arg.reply_head
  if arg.reply_has_tail == '1' then
    body = arg.reply_head .. memory_revision .. arg.reply_tail
  end
  redis.call('SET', key.reply, arg.reply_prefix .. body, 'EX', arg.reply_lifetime)
end
for _, each in ipairs(state) do
  redis.call('EXPIRE', each, arg.lifetime)
end
for i = 1, #arg.jobs, 2 do
  local due, job = arg.jobs[i], arg.jobs[i + 1]
  if key.jobs then
    redis.call('ZADD', key.jobs, due, job)
  end
  if arg.trace ~= '' then
    redis.call('HSET', key.snapshot, 'trace:' .. string.match(job, '^%a+'), arg.trace)
  end
end
if arg.reset == '1' or #arg.set_tools + #arg.set_mined > 0 then
  redis.call('PUBLISH', arg.notice_channel, arg.notice_head .. memory_revision .. '}')
end
local definition_present = 1
if key.definition then
  definition_present = redis.call('EXPIRE', key.definition, arg.definition_lifetime)
end
return {'committed', memory_revision, definition_present, state_before, state_of(key)}
