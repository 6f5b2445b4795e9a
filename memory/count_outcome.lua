-- Counts a conversation into the sums of its split, in place of what was counted of it before.
-- KEYS: sums counted
-- ARGV: conversation order counts kept lifetime
-- `counts` is `field=number field=number ...`, with numbers that are not negative. `counted` tells by
-- conversation what of the sums is its own: `number order counts`, numbered in the order of arrival, so that
-- the oldest are forgotten once there are more than `kept`; their part of the sums stays. What comes later
-- than a greater order changes nothing.
local function add(counts, sign)
  for field, number in string.gmatch(counts, '(%S+)=(%d+)') do
    redis.call('HINCRBY', key.sums, field, sign .. number)
  end
end

local known = redis.call('HGET', key.counted, arg.conversation)
local number
if known then
  local of, order, counts = string.match(known, '^(%d+) (%d+) (.*)$')
  if tonumber(order) > tonumber(arg.order) then
    return 0
  end
  number = of
  add(counts, '-')
else
  number = redis.call('HINCRBY', key.sums, '#', 1)
end
add(arg.counts, '')
redis.call('HSET', key.counted, arg.conversation, number .. ' ' .. arg.order .. ' ' .. arg.counts)
if redis.call('HLEN', key.counted) > tonumber(arg.kept) then
  local all = redis.call('HGETALL', key.counted)
  local newest = tonumber(redis.call('HGET', key.sums, '#'))
  for i = 1, #all, 2 do
    if tonumber(string.match(all[i + 1], '^%d+')) <= newest - arg.kept / 2 then
      redis.call('HDEL', key.counted, all[i])
    end
  end
end
redis.call('EXPIRE', key.sums, arg.lifetime)
redis.call('EXPIRE', key.counted, arg.lifetime)
return 1
