-- Counts a call against the budget of a window. Returns 1 when it is granted.
-- KEYS: calls shares
-- ARGV: budget lifetime tenant
-- `shares` is a hash: what each tenant has had in this window. Once half of the budget is gone, a tenant gets no
-- more than its part of it while others are there; calls of no tenant are of none's share.
local budget = tonumber(arg.budget)
local taken = tonumber(redis.call('GET', key.calls) or '0')
if taken >= budget then
  return 0
end
if arg.tenant ~= '' then
  local own = tonumber(redis.call('HGET', key.shares, arg.tenant) or '0')
  local tenants = redis.call('HLEN', key.shares) + (own == 0 and 1 or 0)
  if tenants > 1 and taken >= budget / 2 and own >= budget / tenants then
    return 0
  end
  redis.call('HINCRBY', key.shares, arg.tenant, 1)
  redis.call('EXPIRE', key.shares, arg.lifetime)
end
redis.call('INCR', key.calls)
redis.call('EXPIRE', key.calls, arg.lifetime)
return 1
