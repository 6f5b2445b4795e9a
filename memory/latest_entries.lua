-- The newest entries of a stream before one, of one tenant where it is named: where to read on, and the entries.
-- KEYS: stream
-- ARGV: before at_most examined tenant
-- At most `examined` entries are looked at. Where to read on is "" at the end of the stream.
local first = arg.before == '' and '+' or '(' .. arg.before
local found = redis.call('XREVRANGE', key.stream, first, '-', 'COUNT', arg.examined)
local entries, last, whole = {}, '', #found < tonumber(arg.examined)
for _, entry in ipairs(found) do
  local own = arg.tenant == ''
  for i = 1, #entry[2], 2 do
    own = own or (entry[2][i] == 'tenant' and entry[2][i + 1] == arg.tenant)
  end
  if own and #entries == tonumber(arg.at_most) then
    whole = false
    break
  end
  if own then
    entries[#entries + 1] = entry
  end
  last = entry[1]
end
return {whole and '' or last, entries}
