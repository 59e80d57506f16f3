-- Hand a running job back, unfinished: another worker continues it from its log. The attempt is not counted.
-- ARGV: id, epoch
-- Returns ok 1, gone 0, fenced -1 (also when the reply of an earlier call was lost).
local id, epoch = ARGV[1], ARGV[2]
local key = job_key(id)
local job = redis.call('HMGET', key, 'epoch', 'status', 'class', 'entry', 'tenant', 'prompt_tokens', 'deadline_at')
if not job[2] then return 0 end
if job[1] ~= epoch or job[2] ~= 'running' then return -1 end
remove_entry(job[3], job[4])
local stream = jobs_key('resume')
ensure_group(stream)
local entry = redis.call('XADD', stream, '*', 'id', id, 'tenant', job[5], 'prompt_tokens', job[6], 'deadline', job[7])
redis.call('HSET', key, 'status', 'queued', 'class', 'resume', 'entry', entry, 'epoch', '')
redis.call('HDEL', key, 'worker')
redis.call('HINCRBY', key, 'attempts', -1)
redis.call('PUBLISH', base .. 'control', 'wake')
return 1
