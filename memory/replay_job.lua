-- Schedules a buried job again and forgets its letter. Returns 0 when there is no such letter.
-- KEYS: jobs letter_ids letters
-- ARGV: letter_id name now
if redis.call('HDEL', key.letters, arg.letter_id) == 0 then
  return 0
end
redis.call('ZREM', key.letter_ids, arg.letter_id)
redis.call('ZADD', key.jobs, arg.now, arg.name)
return 1
