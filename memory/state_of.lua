-- What names the stored state of a conversation: another text after every commit, "" while nothing is stored.
-- Earlier releases write no stamp, but revisions; whoever deletes or repairs a key by hand changes a size.
local function sizes_of(key)
  local call = redis.call
  return {
    call('HSTRLEN', key.snapshot, 'session'), call('STRLEN', key.tenant), call('HLEN', key.mined),
    call('HLEN', key.tools), call('LLEN', key.previous)
  }
end
local function state_text(known, sizes)  -- `known` are fields of the snapshot
  return known.revision and known.revision .. '|' .. (known.stamp or '') .. '|' .. (known.memoryRevision or '') .. '|'
    .. (known.miningRevision or '') .. '|' .. (known.lastUserTurn or '')
    .. string.format('|%d|%d|%d|%d|%d', (table.unpack or unpack)(sizes)) or ''
end
