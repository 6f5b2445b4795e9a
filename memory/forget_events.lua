-- Takes a conversation's events out of one part of the reporting stream, all but word of its erasures and what came
-- after `last`.
-- KEYS: stream
-- ARGV: after last at_most tenant conversation
-- `last` is "+" for all.
-- Returns the id to go on after, "" at the end.
local WORD = '"body":{"subtype":"conversation_erased"},"type":"system","src":"bot"}'
local found = redis.call('XRANGE', key.stream, '(' .. arg.after, arg.last, 'COUNT', arg.at_most)
for _, entry in ipairs(found) do
  local fields = {}
  for i = 1, #entry[2], 2 do
    fields[entry[2][i]] = entry[2][i + 1]
  end
  if fields.conversation == arg.conversation and fields.tenant == arg.tenant
    and string.sub(fields.event, -#WORD) ~= WORD then
    redis.call('XDEL', key.stream, entry[1])
  end
end
return #found == tonumber(arg.at_most) and found[#found][1] or ''
