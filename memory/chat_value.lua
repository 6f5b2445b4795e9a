-- A value that all replicas share: a counter that goes up, or what the first of them has written.
-- KEYS: value
-- ARGV: operation payload kept_s
if arg.operation == 'count' then
  local number = redis.call('INCR', key.value)
  redis.call('EXPIRE', key.value, arg.kept_s)
  return number
end
redis.call('SET', key.value, arg.payload, 'NX')
return redis.call('GET', key.value)
