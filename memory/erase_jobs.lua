-- Forgets jobs, by their names, and dead letters, by their ids.
-- KEYS: jobs leases letter_ids letters
-- LISTS: names ids
for _, name in ipairs(arg.names) do
  redis.call('ZREM', key.jobs, name)
  redis.call('HDEL', key.leases, name)
end
for _, id in ipairs(arg.ids) do
  redis.call('ZREM', key.letter_ids, id)
  redis.call('HDEL', key.letters, id)
end
return 1
