-- Takes conversations out of their tenant's index.
-- KEYS: index
-- LISTS: ids
for _, id in ipairs(arg.ids) do
  redis.call('ZREM', key.index, id)
end
return 1
