-- Stores a try over the revision before its own.
-- KEYS: try index
-- ARGV: id revision now expires lifetime most document record
-- `now` and `expires` are ms since 1970, `lifetime` is in seconds. The first revision brings the document, and
-- is taken where the tenant has less than `most` tries that have not expired.
redis.call('ZREMRANGEBYSCORE', key.index, '-inf', arg.now)
local stored = tonumber(redis.call('HGET', key.try, 'revision') or '0')
if stored ~= tonumber(arg.revision) - 1 then
  return 0
end
if stored == 0 then
  if redis.call('ZCARD', key.index) >= tonumber(arg.most) then
    return 0
  end
  redis.call('HSET', key.try, 'document', arg.document)
end
redis.call('HSET', key.try, 'revision', arg.revision, 'record', arg.record, 'expires', arg.expires)
redis.call('EXPIRE', key.try, arg.lifetime)
redis.call('ZADD', key.index, arg.expires, arg.id)
redis.call('EXPIRE', key.index, arg.lifetime)
return 1
