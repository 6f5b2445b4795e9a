-- Takes due jobs: each is due again when its lease ends.
-- KEYS: jobs leases
-- ARGV: now lease_end wanted token
-- Returns name, attempt, delays, name, attempt, delays, ...
--
-- Whole scores are commits': a job with one was scheduled anew. Scores that this package sets end in .5.
-- A lease is "token:attempt:end:again". One with an end in the past is over; it only tells how often the
-- job was tried; of one that was given back, it is how often in a row a store that was away delayed it.
-- `again` is the time that a commit asked for while somebody held the job, or "". A lease
-- that ended with its token was never given back: its holder was killed, and that attempt counts, also where
-- a commit has scheduled the job anew since.
local now, wanted = tonumber(arg.now), tonumber(arg.wanted)
local SAMPLES = 64

-- Name, score, name, score, ... of jobs that are due. While there are many more than wanted, they are taken
-- from all over the queue, and from each tenant in turn, so that one tenant's backlog is not everybody's.
local function candidates(missing)
  local waiting = redis.call('ZCOUNT', key.jobs, '-inf', arg.now)
  if waiting <= 2 * missing then
    return redis.call('ZRANGEBYSCORE', key.jobs, '-inf', arg.now, 'WITHSCORES', 'LIMIT', 0, missing)
  end
  local seen, queues, tenants = {}, {}, {}
  local function add(first, last)
    local found = redis.call('ZRANGE', key.jobs, first, last, 'WITHSCORES')
    for i = 1, #found, 2 do
      local name = found[i]
      if not seen[name] then
        seen[name] = true
        local tenant = string.match(name, '^[^:]*:([^:]*)') or ''
        if not queues[tenant] then
          queues[tenant] = {}
          tenants[#tenants + 1] = tenant
        end
        table.insert(queues[tenant], name)
        table.insert(queues[tenant], found[i + 1])
      end
    end
  end
  add(0, missing - 1)
  local stride = waiting / SAMPLES
  for i = 0, SAMPLES - 1 do
    local rank = math.floor(i * stride + now % stride)
    if rank < waiting then
      add(rank, rank)
    end
  end
  add(waiting - missing, waiting - 1)
  local fair, round = {}, 1
  while #fair < 2 * missing do
    for _, tenant in ipairs(tenants) do
      local queue = queues[tenant]
      if queue[round] and #fair < 2 * missing then
        fair[#fair + 1] = queue[round]
        fair[#fair + 1] = queue[round + 1]
      end
    end
    round = round + 2
  end
  return fair
end

local claimed = {}
while #claimed < 3 * wanted do
  local due = candidates(wanted - #claimed / 3)
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
      local asked_anew = token == '' and (anew or again ~= '')
      attempt = asked_anew and 1 or tonumber(attempt) + 1
      local delays = token == '' and not asked_anew and tonumber(lease_end) or 0
      redis.call('ZADD', key.jobs, arg.lease_end, name)
      redis.call('HSET', key.leases, name, arg.token .. ':' .. attempt .. ':' .. arg.lease_end .. ':')
      claimed[#claimed + 1] = name
      claimed[#claimed + 1] = attempt
      claimed[#claimed + 1] = delays
    end
  end
end
return claimed
