-- Renew the leases of the jobs that a worker runs: their entries' idle time starts again.
-- ARGV: worker id, then id and epoch of each job
-- Returns the ids that are not this worker's any more (its attempt is over, or the job is gone).
local worker, lost = ARGV[1], {}
for i = 2, #ARGV, 2 do
  local id, epoch = ARGV[i], ARGV[i + 1]
  local job = redis.call('HMGET', job_key(id), 'epoch', 'status', 'class', 'entry')
  if job[1] ~= epoch then
    lost[#lost + 1] = id
  elseif job[2] == 'running' then  -- otherwise it has just ended, and its worker will hear of that
    redis.call('XCLAIM', jobs_key(job[3]), GROUP, worker, 0, job[4], 'JUSTID')
  end
end
return lost
