-- Sessions of the chat by time: those with a message to answer, and all by their last message.
-- KEYS: held active
-- ARGV: operation member now_ms until_ms at_most again_ms
-- Who was to end an idle one may have been killed: after `again_ms` it is named again, unless forgotten.
if arg.operation == 'put' then
  redis.call('ZADD', key.held, 'NX', arg.until_ms, arg.member)
  redis.call('ZADD', key.active, arg.now_ms, arg.member)
elseif arg.operation == 'hold' then
  redis.call('ZADD', key.held, arg.until_ms, arg.member)
elseif arg.operation == 'release' then
  redis.call('ZREM', key.held, arg.member)
elseif arg.operation == 'abandoned' then
  return redis.call('ZRANGEBYSCORE', key.held, 0, arg.now_ms, 'LIMIT', 0, arg.at_most)
elseif arg.operation == 'idle' then
  local found = redis.call('ZRANGEBYSCORE', key.active, 0, arg.until_ms, 'LIMIT', 0, arg.at_most)
  for _, member in ipairs(found) do redis.call('ZADD', key.active, arg.until_ms + arg.again_ms, member) end
  return found
elseif arg.operation == 'forget' then
  redis.call('ZREM', key.active, arg.member)
end
return 1
