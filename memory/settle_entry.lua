-- Settles an entry that is held: done, held for longer, or handed out again; buried if a letter is given.
-- KEYS: entries buried
-- ARGV: group holder id idle_ms attempts most_buried buried_s
-- LISTS: letter
-- `idle_ms` is how long it counts as untouched, "" where it is done; `attempts` how often it was tried;
-- `letter` are fields and values, kept for `buried_s` seconds.
local pending = redis.call('XPENDING', key.entries, arg.group, arg.id, arg.id, 1)
if not pending[1] or pending[1][2] ~= arg.holder then
  return 0
end
if #arg.letter > 0 then
  redis.call('XADD', key.buried, 'MAXLEN', '~', arg.most_buried, '*', unpack(arg.letter))
  redis.call('XTRIM', key.buried, 'MINID', (redis.call('TIME')[1] - arg.buried_s) * 1000)
  redis.call('EXPIRE', key.buried, arg.buried_s)
end
if arg.idle_ms == '' then
  redis.call('XACK', key.entries, arg.group, arg.id)
else
  redis.call('XCLAIM', key.entries, arg.group, arg.holder, 0, arg.id,
    'IDLE', arg.idle_ms, 'RETRYCOUNT', arg.attempts, 'JUSTID')
end
return 1
