-- Hand a running job back, unfinished: another worker continues it from its log. The attempt is not counted.
-- ARGV: id, epoch
-- Returns ok 1, gone 0, fenced -1 (also when the reply of an earlier call was lost).
local id, epoch = ARGV[1], ARGV[2]
local key = job_key(id)
local job = redis.call('HMGET', key, 'epoch', 'status', 'class', 'entry', 'idle_starts', 'length_at_start')
if not job[2] then return 0 end
if job[1] ~= epoch or job[2] ~= 'running' then return -1 end
remove_entry(job[3], job[4])
local is_unproved = job[3] == 'suspect' and redis.call('XLEN', events_key(id)) <= tonumber(job[6] or '0')
requeue(id, is_unproved and 'suspect' or 'resume')
redis.call('HINCRBY', key, 'attempts', -1)
if tonumber(job[5] or '0') > 0 then redis.call('HINCRBY', key, 'idle_starts', -1) end
redis.call('PUBLISH', base .. 'control', 'wake')
return 1
