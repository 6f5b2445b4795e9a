-- Appends events to the reporting stream, all of them or none.
-- KEYS: reporting stream
-- ARGV: stream's length, tenant, conversation, event, kind, event, kind, ...
for i = 4, #ARGV, 2 do
  redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*',
    'event', ARGV[i], 'tenant', ARGV[2], 'conversation', ARGV[3], 'kind', ARGV[i + 1])
end
return #ARGV
