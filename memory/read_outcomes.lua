-- The sums of a split.
-- KEYS: sums
return redis.call('HGETALL', key.sums)
