-- Takes the entries of a journal away once the archive has them, and writes down up to which; 1 if it did.
-- KEYS: snapshot journal segments
-- ARGV: seq kept_ms
-- Not if there are newer ones than `seq`, nor if the conversation stays here longer than the archive keeps them,
-- `kept_ms` from now. The next entry begins a segment, beside the whole state before it.
if redis.call('HGET', key.snapshot, 'seq') ~= arg.seq or redis.call('PTTL', key.snapshot) > tonumber(arg.kept_ms) then
  return 0
end
redis.call('DEL', key.journal, key.segments)  -- first: out of memory, Redis takes this, and what follows it
redis.call('HSET', key.snapshot, 'released', arg.seq, 'journaled', '', 'segment', '0', 'segmentBytes', '0',
  'baseBytes', '0')
return 1
