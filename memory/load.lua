-- Reads a conversation at one instant.
-- KEYS: snapshot, tenant, mined, tools, previousContacts, utterances, stored reply
-- ARGV: "1" to read the utterances too
local turns = {}
if ARGV[1] == '1' then
  turns = redis.call('LRANGE', KEYS[6], 0, -1)
end
return {
  redis.call('HMGET', KEYS[1], 'session', 'memoryRevision', 'memoryUpdatedAt',
    'lastUserTurn', 'mining', 'miningRevision'),
  redis.call('GET', KEYS[2]),
  redis.call('HGETALL', KEYS[3]),
  redis.call('HGETALL', KEYS[4]),
  redis.call('LRANGE', KEYS[5], 0, -1),
  turns,
  redis.call('GET', KEYS[7]),
}
