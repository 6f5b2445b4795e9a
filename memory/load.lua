-- Reads a conversation at one instant.
-- KEYS: snapshot tenant mined tools previous utterances reply
-- ARGV: with_turns
-- `with_turns` is "1" to read the utterances too.
local turns = {}
if arg.with_turns == '1' then
  turns = redis.call('LRANGE', key.utterances, 0, -1)
end
return {
  redis.call('HMGET', key.snapshot, 'session', 'memoryRevision', 'memoryUpdatedAt',
    'lastUserTurn', 'mining', 'miningRevision'),
  redis.call('GET', key.tenant),
  redis.call('HGETALL', key.mined),
  redis.call('HGETALL', key.tools),
  redis.call('LRANGE', key.previous, 0, -1),
  turns,
  redis.call('GET', key.reply),
}
