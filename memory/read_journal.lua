-- Reads entries of a conversation's journal, each as {number, fields and values}.
-- KEYS: journal
-- ARGV: seq at_most backwards
-- The entries after `seq`, ascending; with `backwards` "1" those up to it, descending, down to one with a base.
if arg.backwards == '0' then
  return redis.call('XRANGE', key.journal, '(' .. arg.seq .. '-0', '+', 'COUNT', arg.at_most)
end
local found = redis.call('XREVRANGE', key.journal, arg.seq .. '-0', '-', 'COUNT', arg.at_most)
for i, entry in ipairs(found) do
  for at = 1, #entry[2], 2 do
    if entry[2][at] == 'base' then
      return {(table.unpack or unpack)(found, 1, i)}
    end
  end
end
return found
