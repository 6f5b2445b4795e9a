-- Writes a job down as a commit does. One that waits for its next attempt keeps its time and its attempts.
-- KEYS: jobs leases
-- ARGV: name due
local lease = redis.call('HGET', key.leases, arg.name)
if lease and string.sub(lease, 1, 1) == ':' and redis.call('ZSCORE', key.jobs, arg.name) then
  return 0
end
redis.call('ZADD', key.jobs, arg.due, arg.name)
return 1
