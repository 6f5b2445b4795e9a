-- Counts a call against the budget of a window. Returns 1 when it is granted.
-- KEYS: calls
-- ARGV: budget lifetime
local taken = redis.call('INCR', key.calls)
redis.call('EXPIRE', key.calls, arg.lifetime)
return taken <= tonumber(arg.budget) and 1 or 0
