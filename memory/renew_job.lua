-- Holds a job for longer, if it is still held with this token. Returns 1 then, else 0.
-- KEYS: jobs leases
-- ARGV: name token lease_end
local lease = redis.call('HGET', key.leases, arg.name)
if not lease then
  return 0
end
local token, attempt, _, again = string.match(lease, '^(.*):(%d+):([%d.]+):(%d*)$')
if token ~= arg.token then
  return 0
end
redis.call('HSET', key.leases, arg.name, token .. ':' .. attempt .. ':' .. arg.lease_end .. ':' .. again)
local score = redis.call('ZSCORE', key.jobs, arg.name)
if score and tonumber(score) % 1 ~= 0 then  -- else a commit has scheduled it anew: its time stands
  redis.call('ZADD', key.jobs, arg.lease_end, arg.name)
end
return 1
