-- Gives a held job back: forgets it, or has it tried again; buries it if a letter is given. A job that was
-- scheduled anew since it was claimed is due when that commit said, whatever became of this attempt.
-- KEYS: jobs, leases, dead letters' ids, dead letters
-- ARGV: name, token, when to try again or "", letter's id or "", letter, time, most letters
local name = ARGV[1]
local lease = redis.call('HGET', KEYS[2], name)
if not lease then
  return 0
end
local token, attempt, _, again = string.match(lease, '^(.*):(%d+):([%d.]+):(%d*)$')
if token ~= ARGV[2] then
  return 0
end
local score = redis.call('ZSCORE', KEYS[1], name)
local anew = score and tonumber(score) % 1 == 0
redis.call('HDEL', KEYS[2], name)
if again ~= '' and not anew then
  redis.call('ZADD', KEYS[1], again, name)
elseif not anew and ARGV[3] ~= '' then
  redis.call('ZADD', KEYS[1], ARGV[3], name)
  redis.call('HSET', KEYS[2], name, ':' .. attempt .. ':0:')
elseif not anew then
  redis.call('ZREM', KEYS[1], name)
end
if ARGV[4] ~= '' then
  redis.call('HSET', KEYS[4], ARGV[4], ARGV[5])
  redis.call('ZADD', KEYS[3], ARGV[6], ARGV[4])
  for _, id in ipairs(redis.call('ZRANGE', KEYS[3], 0, -(tonumber(ARGV[7]) + 1))) do
    redis.call('ZREM', KEYS[3], id)
    redis.call('HDEL', KEYS[4], id)
  end
end
return 1
