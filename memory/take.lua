-- Forgets an event that the webhook has taken, and the queue with its last one.
-- KEYS: webhook's queue
-- ARGV: id
redis.call('XDEL', KEYS[1], ARGV[1])
if redis.call('XLEN', KEYS[1]) == 0 then
  redis.call('DEL', KEYS[1])
end
return 1
