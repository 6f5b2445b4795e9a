-- Schedules a buried job again and forgets its letter. Returns 0 when there is no such letter.
-- KEYS: jobs, dead letters' ids, dead letters
-- ARGV: letter's id, name, now
if redis.call('HDEL', KEYS[3], ARGV[1]) == 0 then
  return 0
end
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('ZADD', KEYS[1], ARGV[3], ARGV[2])
return 1
