-- Hands out entries of a stream that others write: first what nobody has settled in time, then new ones.
-- KEYS: entries
-- ARGV: group holder idle_ms wanted
-- Returns {id, attempt, {field, value, ...}}, ...
local wanted, taken = tonumber(arg.wanted), {}
local function hand_out(entries)
  for _, entry in ipairs(entries) do
    if entry[2] then
      local pending = redis.call('XPENDING', key.entries, arg.group, entry[1], entry[1], 1)
      taken[#taken + 1] = {entry[1], pending[1][4], entry[2]}
    end
  end
end
local left = redis.pcall('XAUTOCLAIM', key.entries, arg.group, arg.holder, arg.idle_ms, '0-0', 'COUNT', wanted)
if left.err then
  if not string.find(left.err, 'NOGROUP') and not string.find(left.err, 'No such key') then
    return left
  end
  redis.call('XGROUP', 'CREATE', key.entries, arg.group, '0', 'MKSTREAM')
else
  hand_out(left[2])
end
if #taken < wanted then
  local fresh = redis.call('XREADGROUP', 'GROUP', arg.group, arg.holder,
    'COUNT', wanted - #taken, 'STREAMS', key.entries, '>')
  if fresh then
    hand_out(fresh[1][2])
  end
end
return taken
