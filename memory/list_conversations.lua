-- A part of a tenant's conversations by their start, the newest first: how many are listed in all, and ids.
-- KEYS: index
-- ARGV: highest after at_most
-- From the one after `after`, an id, while it is listed; else from the highest score on; "" for the newest.
local first = arg.after ~= '' and redis.call('ZREVRANK', key.index, arg.after)
if first then
  first = first + 1
elseif arg.highest == '' then
  first = 0
else
  first = redis.call('ZCOUNT', key.index, '(' .. arg.highest, '+inf')
end
local last = first + tonumber(arg.at_most) - 1
return {
  redis.call('ZCARD', key.index),
  redis.call('ZREVRANGE', key.index, string.format('%d', first), string.format('%d', last))
}
