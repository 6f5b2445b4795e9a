-- Takes due jobs: each is due again when its lease ends.
-- KEYS: jobs leases
-- ARGV: now lease_end wanted token
-- Returns name, attempt, name, attempt, ...
--
-- Whole scores are commits': a job with one was scheduled anew. Scores that this package sets end in .5.
-- A lease is "token:attempt:end:again". One with an end in the past is over; it only tells how often the
-- job was tried. `again` is the time that a commit asked for while somebody held the job, or "".
local now, wanted = tonumber(arg.now), tonumber(arg.wanted)
local claimed = {}
while #claimed < 2 * wanted do
  local due = redis.call('ZRANGEBYSCORE', key.jobs, '-inf', arg.now, 'WITHSCORES', 'LIMIT', 0, wanted - #claimed / 2)
  if #due == 0 then
    break
  end
  for i = 1, #due, 2 do
    local name, anew = due[i], tonumber(due[i + 1]) % 1 == 0
    local lease = redis.call('HGET', key.leases, name)
    local token, attempt, lease_end, again = '', '0', '0', ''
    if lease then
      token, attempt, lease_end, again = string.match(lease, '^(.*):(%d+):([%d.]+):(%d*)$')
    end
    if anew and tonumber(lease_end) > now then
      -- Two at once would do the same work: the next waits for the end of this one.
      local asked = string.format('%.0f', tonumber(due[i + 1]))
      redis.call('ZADD', key.jobs, lease_end, name)
      redis.call('HSET', key.leases, name, token .. ':' .. attempt .. ':' .. lease_end .. ':' .. asked)
    else
      attempt = (anew or again ~= '') and 1 or tonumber(attempt) + 1
      redis.call('ZADD', key.jobs, arg.lease_end, name)
      redis.call('HSET', key.leases, name, arg.token .. ':' .. attempt .. ':' .. arg.lease_end .. ':')
      claimed[#claimed + 1] = name
      claimed[#claimed + 1] = attempt
    end
  end
end
return claimed
