-- Takes an erasure's fence away, unless that was done already: by then it may be another one's.
-- KEYS: erasing
-- KEYS: jobs
-- ARGV: fence relay_due relay_job finish_job
-- The jobs are given only where one server holds every slot. Events are sent on once more: a delivery of the
-- erasure's word may be among the jobs that it has forgotten.
if redis.call('GET', key.erasing) ~= arg.fence then
  return 0
end
redis.call('DEL', key.erasing)
if key.jobs then
  redis.call('ZADD', key.jobs, arg.relay_due, arg.relay_job)
  redis.call('ZREM', key.jobs, arg.finish_job)
end
return 1
