-- Holds a job for longer, if it is still held with this token. Returns 1 then, else 0.
-- KEYS: jobs, leases
-- ARGV: name, token, end of the lease
local lease = redis.call('HGET', KEYS[2], ARGV[1])
if not lease then
  return 0
end
local token, attempt, _, again = string.match(lease, '^(.*):(%d+):([%d.]+):(%d*)$')
if token ~= ARGV[2] then
  return 0
end
redis.call('HSET', KEYS[2], ARGV[1], token .. ':' .. attempt .. ':' .. ARGV[3] .. ':' .. again)
local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
if score and tonumber(score) % 1 ~= 0 then  -- else a commit has scheduled it anew: its time stands
  redis.call('ZADD', KEYS[1], ARGV[3], ARGV[1])
end
return 1
