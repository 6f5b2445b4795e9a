-- All that a process holds of a conversation, but for its name: fields of the snapshot, then the other keys.
local function whole_of(key)
  return redis.call('HMGET', key.snapshot, 'session', 'memoryRevision', 'memoryUpdatedAt', 'lastUserTurn',
    'mining', 'miningRevision'),
    redis.call('GET', key.tenant),
    redis.call('HGETALL', key.mined),
    redis.call('HGETALL', key.tools),
    redis.call('LRANGE', key.previous, 0, -1)
end
