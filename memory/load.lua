-- Reads a conversation at one instant.
-- KEYS: snapshot tenant mined tools previous utterances reply
-- ARGV: with_turns known
-- WITH: state_of whole_of
-- `with_turns` is "1" to read the utterances and the former conversations too. `known` is the state that the
-- caller holds, "" for none: while it is the stored one, what makes it up is not read again; nor is anything where
-- nothing is stored. The reply is given where the request carries an idempotency key.
local reply = key.reply and redis.call('GET', key.reply)
local known = known_of(key, STATE)
if not known.revision then
  return {'', {}, {}, reply or false}
end
local turns, former = {}, {}
if arg.with_turns == '1' then
  turns = redis.call('LRANGE', key.utterances, 0, -1)
  for _, field in ipairs(redis.call('HKEYS', key.snapshot)) do
    if string.sub(field, 1, 7) == 'former:' then
      former[#former + 1] = redis.call('HGET', key.snapshot, field)
    end
  end
end
local state = state_text(known, sizes_of(key))
if state == arg.known then
  return {state, turns, former, reply or false}
end
return {state, turns, former, reply or false, whole_of(key)}
