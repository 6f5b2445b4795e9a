-- Looks at one part of the jobs, of their leases or of the dead letters for those of one conversation. Rare, so
-- nothing is indexed: each is looked at.
-- KEYS: collection
-- ARGV: scan cursor named at_most owner
-- `scan` is ZSCAN or HSCAN, `owner` is ":tenant:conversation:", the middle of a job's name, `named` a glob that
-- what it is called there matches.
-- Returns the cursor to go on from, "0" at the end, and how they are called there.
local scanned = redis.call(arg.scan, key.collection, arg.cursor, 'MATCH', arg.named, 'COUNT', arg.at_most)
local found, owned = scanned[2], {scanned[1]}
for i = 1, #found, 2 do
  local job = string.match(found[i + 1], '^{"job":"([^"]*)"') or found[i]
  if string.find(job, arg.owner, 1, true) then
    owned[#owned + 1] = found[i]
  end
end
return owned
