-- Commits one step of a conversation as a whole, or leaves everything as it was.
-- KEYS: snapshot tenant mined tools previous utterances messages journal segments outbox erasing reply
-- KEYS: definition jobs index
-- ARGV: expected_revision lifetime stamp
-- OPTIONS: expected_memory_revision expected_mining_revision expected_state now
-- OPTIONS: reply_prefix reply_lifetime reply_head reply_has_tail reply_tail reply_when_seen
-- OPTIONS: new_revision session version_id message_id message turn turns_kept turn_bytes_kept messages_kept
-- OPTIONS: is_user_turn mining
-- OPTIONS: former_name former forget_former
-- OPTIONS: reset new_tenant rewrite_previous trace notice_head
-- OPTIONS: forked forked_turns
-- OPTIONS: journal journal_bounds head origin index
-- WITH: state_of whole_of
-- LISTS: new_variables added_variables set_tools set_mined previous_contacts events jobs
-- The definition, the jobs and the index are given only where one server holds every slot. What is not wanted
-- is left out: an expected revision, the reply where the request carries no idempotency key, a session that
-- stays as it is, a message, the state of mining, a trace. Variables are listed as id, entry, id, entry, ...;
-- jobs as due time, name, ... Every value is opaque here: a JSON round trip in Lua would turn [] into {} and
-- lose digits of large integers.
-- `message` is what a message is known by: of its contact, and numbered in the order of arrival, so that the
-- oldest are forgotten once there are more than `messages_kept`. Earlier releases knew it by its id alone,
-- "1". They stay known where the conversation starts anew. Whoever listens on the channel is told of each change of
-- the memory. `stamp` is of this commit alone; the answer tells the state before and after it, the one before ""
-- where it was the expected one. Who expected a state, and lost, gets the newer one. `now` is left out where the
-- journal's entry tells when.
-- `journal` is the commit's entry; it begins with {"at":"<when>". What the commit writes as a whole
-- stands beside it in fields of their own: session and tenant of a start, and each variable, as "tools.<id>" where a
-- tool has written it; a list that is too long for that in netstrings, as "tools". Entries are numbered without gaps
-- and kept in segments; the first of a segment stands beside the whole state before it, so the oldest segments
-- make room as wholes. `journal_bounds`: entries and bytes of a segment, bytes of all ended ones.
-- `journaled` is the stamp of the last commit with an entry: where another came after it, a segment begins.
-- `head` is what a list tells of the conversation, where that changes, `origin` what of that it keeps from its
-- start; that and `index` come with a start. The index has the newest conversations of a tenant by the ms of their
-- start: `index` is how many, then those ms and the id of this one.
-- `forked` is the whole state that a new conversation begins with, as `whole_state` writes it, `forked_turns` its
-- messages in netstrings: what one is known by, the message, ...
-- First all is read and worked out, then written, the fields of the snapshot at once and before all else: out of
-- memory, Redis refuses only a script's first write, and never a DEL. The notice goes before that: a user who has no
-- right to the channel, as Redis makes one, would leave a commit without its end.
-- The keys of a conversation expire together. A commit renews them once the snapshot has lost a hundredth of its
-- lifetime, at most a minute; until then it gives what is left of it to keys that it makes.
-- Most of its time goes to Lua, not to commands: to tables that grow step by step, to numbers that become texts
-- otherwise than by `%d`, and to assignments of several elements, which store the last one first, beside the list.
local call, format, spread = redis.call, string.format, table.unpack or unpack
local AT_ONCE, RENEWED_AFTER_MS = 1000, 60000
local reset, message_comes = arg.reset, arg.message_id
local values = call('HMGET', key.snapshot, 'revision', 'stamp', 'memoryRevision', 'miningRevision', 'lastUserTurn',
  'memoryUpdatedAt', 'mining', 'turnBytes', 'messages', 'seq', 'segment', 'segmentBytes', 'baseBytes', 'journaled')
local known = {
  revision = values[1], stamp = values[2], memoryRevision = values[3], miningRevision = values[4],
  lastUserTurn = values[5], memoryUpdatedAt = values[6], mining = values[7], turnBytes = values[8],
  messages = values[9], seq = values[10], segment = values[11], segmentBytes = values[12], baseBytes = values[13],
  journaled = values[14]
}
local begins = not known.revision
local function number_of(field)
  return (known[field] or 0) + 0
end

-- Fields of the snapshot as they will be, and those that it loses.
local fields, filled, lost = {}, 0, {}
local function put(field, value)
  known[field] = value
  if lost[field] then
    lost[field] = nil
  end
  fields[filled + 1] = field
  filled = filled + 2
  fields[filled] = value
end
local function count(field)
  put(field, format('%d', number_of(field) + 1))
end

-- Keys that were not there before.
local made = {}
local function set_fields(hash, flat)
  local added = 0
  for i = 1, #flat, AT_ONCE do
    added = added + call('HSET', hash, spread(flat, i, math.min(i + AT_ONCE - 1, #flat)))
  end
  return added
end
local function add_fields(hash, flat)
  local added = 0
  for i = 1, #flat, 2 do
    added = added + call('HSETNX', hash, flat[i], flat[i + 1])
  end
  return added
end
local function add_to_list(list, values)
  local length = 0
  for i = 1, #values, AT_ONCE do
    length = call('RPUSH', list, spread(values, i, math.min(i + AT_ONCE - 1, #values)))
  end
  if length == #values then
    made[#made + 1] = list
  end
  return length
end

-- Earlier releases did not count the bytes of the turns.
local function bytes_of_turns()
  if reset or known.turnBytes then
    return reset and 0 or number_of('turnBytes')
  end
  local bytes = 0
  for _, turn in ipairs(call('LRANGE', key.utterances, 0, -1)) do
    bytes = bytes + #turn
  end
  return bytes
end

-- The newest turns are kept, as many and as large as is allowed.
local function remember(message, number, turn)  -- "" where it is only to be known again
  call('HSET', key.messages, message, number)
  local turns = turn == '' and call('LLEN', key.utterances) or add_to_list(key.utterances, {turn})
  if turns <= 1 then
    made[#made + 1] = key.messages
  end
  return turns
end
local function forget_oldest(number, turns, bytes)
  local left, kept = bytes, tonumber(arg.messages_kept)
  while turns > tonumber(arg.turns_kept) or turns > 1 and left > tonumber(arg.turn_bytes_kept) do
    turns, left = turns - 1, left - #call('LPOP', key.utterances)
  end
  if left ~= bytes then
    call('HSET', key.snapshot, 'turnBytes', left)
  end
  if number > kept and call('HLEN', key.messages) > kept then
    local all = call('HGETALL', key.messages)
    for i = 1, #all, 2 do
      if tonumber(all[i + 1]) <= number - kept / 2 then
        call('HDEL', key.messages, all[i])
      end
    end
  end
end

local function in_netstrings(parts)
  local texts = {}
  for i, part in ipairs(parts) do
    texts[i] = #part .. ':' .. part
  end
  return table.concat(texts)
end

-- Netstrings: six fields of the snapshot, the tenant, and three lists with their lengths before them.
local function whole_state()
  local parts, tenant, mined, tools, previous = whole_of(key)
  parts[7] = tenant
  for i = 1, 7 do
    parts[i] = parts[i] or ''
  end
  for _, list in ipairs({mined, tools, previous}) do
    parts[#parts + 1] = tostring(#list)
    for _, part in ipairs(list) do
      parts[#parts + 1] = part
    end
  end
  return in_netstrings(parts)
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

-- A list of a whole state, and where the next one begins.
local function list_at(parts, at)
  local list = {}
  for i = 1, tonumber(parts[at]) do
    list[i] = parts[at + i]
  end
  return list, at + 1 + #list
end

-- Adds variables to the fields of an entry, and says how many bytes they take.
local function add_variables(entry, list, flat)
  if #flat > AT_ONCE then
    flat, list = {'', in_netstrings(flat)}, string.sub(list, 1, -2)
  end
  local bytes, last = 0, #entry
  for i = 1, #flat, 2 do
    local name = list .. flat[i]
    entry[last + i] = name
    entry[last + i + 1] = flat[i + 1]
    bytes = bytes + #name + #flat[i + 1]
  end
  return bytes
end

local MEMORY_REVISION = 6  -- of an entry: where the value stands, which is not known at first

local function place_in_journal()
  local seq, segment = number_of('seq') + 1, number_of('segment')
  local bytes, base_bytes, first = number_of('segmentBytes'), number_of('baseBytes'), format('%d', seq)
  local id = first .. '-0'
  local entry = not reset and {key.journal, id, 'entry', arg.journal, 'memoryRevision', ''} or {
    key.journal, id, 'entry', arg.journal, 'memoryRevision', '', 'session', arg.session, 'tenant', arg.new_tenant
  }
  local place = {seq = seq, entry = entry}
  local most_entries, most_bytes = string.match(arg.journal_bounds, '^(%d+) (%d+)')
  if not known.seq or known.journaled ~= known.stamp or seq - segment >= most_entries + 0
    or bytes > most_bytes + base_bytes then
    place.base = not begins and whole_state() or arg.forked or ''
    place.ended = segment > 0 and segment .. ':' .. bytes + base_bytes
    place.kept_bytes = tonumber(string.match(arg.journal_bounds, '%d+$'))
    bytes = 0
    put('segment', first)
    put('baseBytes', format('%d', #place.base))
  end
  put('seq', first)
  bytes = bytes + #arg.journal
  if reset then
    bytes = bytes + #arg.session + #arg.new_tenant + add_variables(entry, 'variables.', arg.new_variables)
  end
  bytes = bytes + add_variables(entry, 'added.', arg.added_variables) + add_variables(entry, 'tools.', arg.set_tools)
    + add_variables(entry, 'mined.', arg.set_mined)
  put('segmentBytes', format('%d', bytes))
  put('journaled', arg.stamp)
  put('updatedAt', string.sub(arg.journal, 8, string.find(arg.journal, '"', 8, true) - 1))  -- {"at":"<when>"
  return place
end

local function end_segment(place)
  add_to_list(key.segments, {place.ended})
  local ended = call('LRANGE', key.segments, 0, -1)
  local total, kept = 0, place.seq
  for i = #ended, 1, -1 do
    local first, bytes = string.match(ended[i], '^(%d+):(%d+)$')
    total = total + bytes
    if total > place.kept_bytes then
      if i == #ended then
        call('DEL', key.segments)
      else
        call('LTRIM', key.segments, i, -1)
      end
      call('XTRIM', key.journal, 'MINID', kept .. '-0')
      break
    end
    kept = first
  end
end

local function write_journal(place)
  local entry = place.entry
  entry[MEMORY_REVISION] = known.memoryRevision
  if place.base then
    made[#made + 1] = key.journal
    if place.ended then
      end_segment(place)
    end
    if place.base ~= '' then
      entry[#entry + 1] = 'base'
      entry[#entry + 1] = place.base
    end
  end
  call('XADD', spread(entry))
end

-- --- whether it is taken -----------------------------------------------------------------------

if arg.reply_prefix then
  local reply = call('GET', key.reply)
  if reply then
    return {'replayed', reply}
  end
end
if message_comes then
  local seen = call('HMGET', key.messages, arg.message, arg.message_id)
  if seen[1] or seen[2] == '1' then
    if arg.reply_prefix then
      call('SET', key.reply, arg.reply_when_seen, 'EX', arg.reply_lifetime)
    end
    return {'seen'}
  end
end
local sizes = begins and {0, 0, 0, 0, 0} or sizes_of(key)
local state_before = state_text(known, sizes)
if arg.expected_state and state_before ~= arg.expected_state then
  return {'lost', state_before, whole_of(key)}
end
if (known.revision or '0') ~= arg.expected_revision
  or arg.expected_memory_revision and (known.memoryRevision or '0') ~= arg.expected_memory_revision
  or arg.expected_mining_revision and (known.miningRevision or '0') ~= arg.expected_mining_revision then
  return {'lost'}
end

-- What was stored under the id is still being erased, by name: it would take this one along.
if begins and call('EXISTS', key.erasing) == 1 then
  return {'erasing'}
end

-- Another has concluded it.
if arg.forget_former and call('HEXISTS', key.snapshot, 'former:' .. arg.forget_former) == 0 then
  return {'lost'}
end

-- --- what the snapshot will have ---------------------------------------------------------------

local forked, forked_turns, messages = NONE, NONE, number_of('messages') + 1
if arg.forked then
  forked, forked_turns = parts_of(arg.forked), parts_of(arg.forked_turns)
end
local place = arg.journal and place_in_journal()
if arg.new_revision then
  put('revision', arg.new_revision)
  put('versionId', arg.version_id)
  put('session', arg.session)
end
if reset and begins then
  put('memoryRevision', '0')
elseif reset then
  for _, field in ipairs({'memoryUpdatedAt', 'lastUserTurn', 'mining', 'miningRevision', 'turnBytes'}) do
    known[field], lost[field] = nil, known[field]
  end
  count('memoryRevision')
end
if arg.forked then
  for i, field in ipairs({'memoryRevision', 'memoryUpdatedAt', 'lastUserTurn', 'mining', 'miningRevision'}) do
    if forked[i + 1] ~= '' then
      put(field, forked[i + 1])
    end
  end
end
if #arg.set_tools + #arg.set_mined > 0 then
  count('memoryRevision')
  put('memoryUpdatedAt', arg.now or known.updatedAt)
end
if arg.mining then
  put('mining', arg.mining)
  count('miningRevision')
end
local turn_bytes = 0
if message_comes then
  turn_bytes = bytes_of_turns() + #arg.turn
  put('turnBytes', format('%d', turn_bytes))
  if arg.is_user_turn == '1' then
    put('lastUserTurn', arg.message)
  end
end
if message_comes or #forked_turns > 0 then
  put('messages', format('%d', messages - 1 + #forked_turns / 2 + (message_comes and 1 or 0)))
end
if arg.former_name then
  put('former:' .. arg.former_name, arg.former)
end
if arg.forget_former then
  lost['former:' .. arg.forget_former] = ''
end
if known.revision then
  put('stamp', arg.stamp)
end
if arg.head then
  put('head', arg.head)
  if arg.origin then
    put('origin', arg.origin)
  end
end
for i = 2, arg.trace and #arg.jobs or 0, 2 do
  put('trace:' .. string.match(arg.jobs[i], '^%a+'), arg.trace)
end

-- --- all is written ----------------------------------------------------------------------------

local lifetime, left = arg.lifetime * 1000, -1
if begins then
  made[1] = key.snapshot
else
  left = call('PTTL', key.snapshot)
end
if reset or #arg.set_tools + #arg.set_mined > 0 then
  call('PUBLISH', string.sub(key.snapshot, 1, -9) .. 'memory', arg.notice_head .. known.memoryRevision .. '}')
end
if filled > 0 then
  call('HSET', key.snapshot, spread(fields))
end
if next(lost) then
  local names = {}
  for name in pairs(lost) do
    names[#names + 1] = name
  end
  call('HDEL', key.snapshot, spread(names))
end
if arg.session then
  sizes[1] = #arg.session
end
local mined, tools, previous = arg.new_variables, arg.new_variables, arg.previous_contacts
if arg.forked then
  local at
  mined, at = list_at(forked, 8)
  tools, at = list_at(forked, at)
  previous = list_at(forked, at)
end
if begins then  -- somebody may have deleted the snapshot alone: a journal that goes on elsewhere takes no entry 1
  call('DEL', key.tenant, key.mined, key.tools, key.previous, key.utterances, key.messages, key.journal, key.segments)
elseif reset then
  call('DEL', key.tenant, key.mined, key.tools, key.previous, key.utterances)
  if not known.messages then  -- known by their ids alone
    call('DEL', key.messages)
  end
  sizes = {sizes[1], 0, 0, 0, 0}
end
if reset or arg.forked then
  local tenant = reset and arg.new_tenant or forked[7]
  call('SET', key.tenant, tenant)
  sizes[2] = #tenant
  made[#made + 1] = key.tenant
end
local function write_variables(at, hash, new, set)
  local added = set_fields(hash, new) + add_fields(hash, arg.added_variables) + set_fields(hash, set)
  if sizes[at] == 0 and added > 0 then
    made[#made + 1] = hash
  end
  sizes[at] = sizes[at] + added
end
write_variables(3, key.mined, mined, arg.set_mined)
write_variables(4, key.tools, tools, arg.set_tools)
if arg.rewrite_previous then
  call('DEL', key.previous)
  sizes[5] = 0
end
if #previous > 0 then
  sizes[5] = add_to_list(key.previous, previous)
end
for i = 1, #forked_turns, 2 do
  messages = messages + 1
  remember(forked_turns[i], messages, forked_turns[i + 1])
end
if message_comes then
  forget_oldest(messages + 1, remember(arg.message, messages + 1, arg.turn), turn_bytes)
end
for _, event in ipairs(arg.events) do
  call('XADD', key.outbox, '*', 'event', event)
end
if #arg.events > 0 then
  made[#made + 1] = key.outbox  -- maybe: nobody says whether a stream was there
end
if place then
  write_journal(place)
end
if key.index and arg.index then
  local kept, score, id = string.match(arg.index, '^(%d+) (%d+) (.*)$')
  call('ZADD', key.index, score, id)
  call('ZREMRANGEBYRANK', key.index, 0, -1 - kept)
end
if arg.reply_prefix then
  local body = arg.reply_head
  if arg.reply_has_tail then
    body = arg.reply_head .. known.memoryRevision .. arg.reply_tail
  end
  call('SET', key.reply, arg.reply_prefix .. body, 'EX', arg.reply_lifetime)
end
if begins then
  left = lifetime
elseif math.abs(lifetime - left) > math.min(lifetime / 100, RENEWED_AFTER_MS) then
  left, made = lifetime, {
    key.snapshot, key.tenant, key.mined, key.tools, key.previous, key.utterances, key.messages,
    key.journal, key.segments, key.outbox
  }
end
for i = 1, #made do
  call('PEXPIRE', made[i], format('%d', left))
end
if key.jobs and #arg.jobs > 0 then
  call('ZADD', key.jobs, spread(arg.jobs))
end
local definition_present = 1
if key.definition then
  definition_present = call('EXPIRE', key.definition, format('%d', 2 * arg.lifetime))
end
if begins and not reset then
  sizes = sizes_of(key)
end
return {
  'committed', known.memoryRevision or false, definition_present, not arg.expected_state and state_before or '',
  state_text(known, sizes)
}
