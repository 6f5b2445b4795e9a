-- Notes that a process lives, and forgets those that were not seen since, that one too.
-- KEYS: processes
-- ARGV: process seen forgotten lifetime
redis.call('ZADD', key.processes, arg.seen, arg.process)
redis.call('ZREMRANGEBYSCORE', key.processes, '-inf', '(' .. arg.forgotten)
redis.call('EXPIRE', key.processes, arg.lifetime)
return 1
