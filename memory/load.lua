-- Reads a conversation at one instant.
-- KEYS: snapshot tenant mined tools previous utterances reply
-- ARGV: with_turns known
-- WITH: state_of whole_of
-- `with_turns` is "1" to read the utterances and the former conversations too. `known` is the state that the
-- caller holds, "" for none: while it is the stored one, what makes it up is not read again.
local turns, former = {}, {}
if arg.with_turns == '1' then
  turns = redis.call('LRANGE', key.utterances, 0, -1)
  for _, field in ipairs(redis.call('HKEYS', key.snapshot)) do
    if string.sub(field, 1, 7) == 'former:' then
      former[#former + 1] = redis.call('HGET', key.snapshot, field)
    end
  end
end
local reply = redis.call('GET', key.reply)
local state = state_of(key)
if state ~= '' and state == arg.known then
  return {state, turns, former, reply}
end
return {state, turns, former, reply, whole_of(key)}
