-- What names the stored state of a conversation: another one after every commit, "" while nothing is stored.
-- Earlier releases write no stamp, but revisions; whoever deletes or repairs a key by hand changes a size.
local function state_of(key)
  local parts = redis.call('HMGET', key.snapshot, 'revision', 'stamp', 'memoryRevision', 'miningRevision',
    'lastUserTurn')
  if not parts[1] then
    return ''
  end
  for i = 2, 5 do
    parts[i] = parts[i] or ''
  end
  parts[6] = redis.call('HSTRLEN', key.snapshot, 'session')
  parts[7] = redis.call('STRLEN', key.tenant)
  parts[8] = redis.call('HLEN', key.mined)
  parts[9] = redis.call('HLEN', key.tools)
  parts[10] = redis.call('LLEN', key.previous)
  return table.concat(parts, '|')
end
