-- Cancel a job for its client, or end it because its deadline has passed.
-- ARGV: id, mode ('cancel' or 'expire')
-- Returns the job's status afterwards ('running': the worker will end it at its next emit), or false if it is unknown.
-- The entry of a queued job stays in its stream until a worker skips it: deleting unread entries spoils `lag`.
local id, mode = ARGV[1], ARGV[2]
local key = job_key(id)
local job = redis.call('HMGET', key, 'status', 'deadline_at', 'class', 'entry')
local status = job[1]
if not status or is_terminal(status) then return status end

if mode == 'expire' then
  if tonumber(job[2]) > now_ms() then return status end
  end_job(id, 'expired', nil, {code = 'expired', message = 'the deadline passed before the job was finished'})
  if status == 'running' then
    remove_entry(job[3], job[4])
    redis.call('PUBLISH', base .. 'control', 'cancel ' .. id)
  end
  return 'expired'
end
if status == 'queued' then
  end_job(id, 'cancelled', nil, {code = 'cancelled', message = 'the job was cancelled'})
  return 'cancelled'
end
redis.call('HSET', key, 'cancel', 1)
redis.call('PUBLISH', base .. 'control', 'cancel ' .. id)
return status
