-- Keeps the account of a model call; beyond about `kept` of a tenant the oldest go.
-- KEYS: calls
-- ARGV: call kept lifetime
redis.call('XADD', key.calls, 'MAXLEN', '~', arg.kept, '*', 'call', arg.call)
redis.call('EXPIRE', key.calls, arg.lifetime)
return 1
