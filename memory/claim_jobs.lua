-- Takes due jobs: each is due again when its lease ends.
-- KEYS: jobs, leases
-- ARGV: now, end of the lease, most jobs, token of the lease
-- Returns name, attempt, name, attempt, ...
--
-- Whole scores are commits': a job with one was scheduled anew. Scores that this package sets end in .5.
-- A lease is "token:attempt:end:again". One with an end in the past is over; it only tells how often the
-- job was tried. `again` is the time that a commit asked for while somebody held the job, or "".
local now, wanted = tonumber(ARGV[1]), tonumber(ARGV[3])
local claimed = {}
while #claimed < 2 * wanted do
  local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'WITHSCORES', 'LIMIT', 0, wanted - #claimed / 2)
  if #due == 0 then
    break
  end
  for i = 1, #due, 2 do
    local name, anew = due[i], tonumber(due[i + 1]) % 1 == 0
    local lease = redis.call('HGET', KEYS[2], name)
    local token, attempt, lease_end, again = '', '0', '0', ''
    if lease then
      token, attempt, lease_end, again = string.match(lease, '^(.*):(%d+):([%d.]+):(%d*)$')
    end
    if anew and tonumber(lease_end) > now then
      -- Two at once would do the same work: the next waits for the end of this one.
      local asked = string.format('%.0f', tonumber(due[i + 1]))
      redis.call('ZADD', KEYS[1], lease_end, name)
      redis.call('HSET', KEYS[2], name, token .. ':' .. attempt .. ':' .. lease_end .. ':' .. asked)
    else
      attempt = (anew or again ~= '') and 1 or tonumber(attempt) + 1
      redis.call('ZADD', KEYS[1], ARGV[2], name)
      redis.call('HSET', KEYS[2], name, ARGV[4] .. ':' .. attempt .. ':' .. ARGV[2] .. ':')
      claimed[#claimed + 1] = name
      claimed[#claimed + 1] = attempt
    end
  end
end
return claimed
