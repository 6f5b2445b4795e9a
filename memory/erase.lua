-- Deletes a conversation and leaves word of it: an event in an outbox of its own, and the receipt. The fence keeps
-- others from beginning under its id until what lies elsewhere is gone too; it has a lifetime so that an id that
-- nobody cares for is not blocked for ever.
-- KEYS: snapshot tenant mined tools previous utterances messages journal segments outbox webhook_queue confirmation
-- KEYS: reply erasing
-- KEYS: jobs
-- ARGV: event event_lifetime receipt receipt_lifetime fence fence_lifetime archived
-- LISTS: due
-- The jobs are given only where one server holds every slot; those to write down are in `due`, as time, name, ...
-- Without an idempotency key the receipt is "".
-- Of a conversation that is `archived`, "1", word is left also where nothing of it is here.
if redis.call('EXISTS', key.snapshot) == 0 and arg.archived ~= '1' then
  return 0
end
redis.call('DEL', key.snapshot, key.tenant, key.mined, key.tools, key.previous, key.utterances, key.messages,
  key.journal, key.segments, key.outbox, key.webhook_queue, key.confirmation)
redis.call('SET', key.erasing, arg.fence, 'EX', arg.fence_lifetime)
redis.call('XADD', key.outbox, '*', 'event', arg.event)
redis.call('EXPIRE', key.outbox, arg.event_lifetime)
if arg.receipt ~= '' then
  redis.call('SET', key.reply, arg.receipt, 'EX', arg.receipt_lifetime)
end
if key.jobs then
  redis.call('ZADD', key.jobs, (table.unpack or unpack)(arg.due))
end
return 1
