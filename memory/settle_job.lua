-- Gives a held job back: forgets it, or has it tried again; buries it if a letter is given. A job that was
-- scheduled anew since it was claimed is due when that commit said, whatever became of this attempt.
-- KEYS: jobs leases letter_ids letters
-- ARGV: name token again_at delays letter_id letter buried_at most_letters
-- Without a time to try again, `again_at` is ""; without a letter, `letter_id` is. With `delays` above 0 this
-- attempt does not count.
local name = arg.name
local lease = redis.call('HGET', key.leases, name)
if not lease then
  return 0
end
local token, attempt, _, again = string.match(lease, '^(.*):(%d+):([%d.]+):(%d*)$')
if token ~= arg.token then
  return 0
end
local score = redis.call('ZSCORE', key.jobs, name)
local anew = score and tonumber(score) % 1 == 0
redis.call('HDEL', key.leases, name)
if again ~= '' and not anew then
  redis.call('ZADD', key.jobs, again, name)
elseif not anew and arg.again_at ~= '' then
  redis.call('ZADD', key.jobs, arg.again_at, name)
  local counted = tonumber(arg.delays) > 0 and tonumber(attempt) - 1 or tonumber(attempt)
  redis.call('HSET', key.leases, name, ':' .. counted .. ':' .. arg.delays .. ':')
elseif not anew then
  redis.call('ZREM', key.jobs, name)
end
if arg.letter_id ~= '' then
  redis.call('HSET', key.letters, arg.letter_id, arg.letter)
  redis.call('ZADD', key.letter_ids, arg.buried_at, arg.letter_id)
  for _, id in ipairs(redis.call('ZRANGE', key.letter_ids, 0, -(tonumber(arg.most_letters) + 1))) do
    redis.call('ZREM', key.letter_ids, id)
    redis.call('HDEL', key.letters, id)
  end
end
return 1
