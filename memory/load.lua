-- Reads a conversation at one instant.
-- KEYS: snapshot tenant mined tools previous utterances reply
-- ARGV: with_turns known
-- WITH: state_of whole_of
-- `with_turns` is "1" to read the utterances and the former conversations too. `known` is the state that the
-- caller holds, "" for none: while it is the stored one, what makes it up is not read again; nor is anything where
-- nothing is stored. The reply is given where the request carries an idempotency key. Where the caller holds all
-- that it asks for, the answer is that state alone.
local reply = key.reply and redis.call('GET', key.reply)
local values = redis.call('HMGET', key.snapshot, 'revision', 'stamp', 'memoryRevision', 'miningRevision',
  'lastUserTurn')
local known = {
  revision = values[1], stamp = values[2], memoryRevision = values[3], miningRevision = values[4],
  lastUserTurn = values[5]
}
if not known.revision then
  return {'', {}, {}, reply or false}
end
local state = state_text(known, sizes_of(key))
local unchanged, with_turns = state == arg.known, arg.with_turns == '1'
if unchanged and not with_turns and not reply then
  return state
end
local turns, former = {}, {}
if with_turns then
  turns = redis.call('LRANGE', key.utterances, 0, -1)
  for _, field in ipairs(redis.call('HKEYS', key.snapshot)) do
    if string.sub(field, 1, 7) == 'former:' then
      former[#former + 1] = redis.call('HGET', key.snapshot, field)
    end
  end
end
if unchanged then
  return {state, turns, former, reply or false}
end
return {state, turns, former, reply or false, whole_of(key)}
