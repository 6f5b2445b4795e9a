-- Forgets an event that the webhook has taken, and the queue with its last one.
-- KEYS: webhook_queue
-- ARGV: id
redis.call('XDEL', key.webhook_queue, arg.id)
if redis.call('XLEN', key.webhook_queue) == 0 then
  redis.call('DEL', key.webhook_queue)
end
return 1
