-- What names the stored state of a conversation: another text after every commit, "" while nothing is stored.
-- Earlier releases write no stamp, but revisions; whoever deletes or repairs a key by hand changes a size.
local STATE = {'revision', 'stamp', 'memoryRevision', 'miningRevision', 'lastUserTurn'}
local function known_of(key, names)
  local values, known = redis.call('HMGET', key.snapshot, (table.unpack or unpack)(names)), {}
  for i, name in ipairs(names) do
    known[name] = values[i] or nil
  end
  return known
end
local function sizes_of(key)
  return {
    redis.call('HSTRLEN', key.snapshot, 'session'), redis.call('STRLEN', key.tenant), redis.call('HLEN', key.mined),
    redis.call('HLEN', key.tools), redis.call('LLEN', key.previous)
  }
end
local function state_text(known, sizes)
  local parts = {}
  for i, name in ipairs(STATE) do
    parts[i], parts[#STATE + i] = known[name] or '', sizes[i]
  end
  return known.revision and table.concat(parts, '|') or ''
end
