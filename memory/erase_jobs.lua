-- Forgets every job and dead letter of a conversation, but for the jobs that are `spared`. Rare, so nothing is
-- indexed: each job is looked at.
-- KEYS: jobs leases letter_ids letters
-- ARGV: owner
-- LISTS: spared
-- `owner` is ":tenant:conversation:", the middle of a job's name.
local function owned(name)
  return string.find(name, arg.owner, 1, true)
end
local spared = {}
for _, name in ipairs(arg.spared) do
  spared[name] = true
end
for _, name in ipairs(redis.call('ZRANGE', key.jobs, 0, -1)) do
  if owned(name) and not spared[name] then
    redis.call('ZREM', key.jobs, name)
  end
end
for _, name in ipairs(redis.call('HKEYS', key.leases)) do
  if owned(name) and not spared[name] then
    redis.call('HDEL', key.leases, name)
  end
end
local letters = redis.call('HGETALL', key.letters)
for i = 1, #letters, 2 do
  if owned(cjson.decode(letters[i + 1]).job) then
    redis.call('HDEL', key.letters, letters[i])
    redis.call('ZREM', key.letter_ids, letters[i])
  end
end
return 1
