-- Accept all of the given jobs, or none if the queue has no room for them.
-- ARGV: class, most waiting jobs, timeout ms, keep ms (how long a finished job can be read), then five for each job:
--       id, request JSON, tenant, prompt tokens, max tokens
-- Returns {1, position of the first job among the waiting ones} or {0, number of waiting jobs}.
-- Writes jobs:<class> (XADD), job:<id>; publishes `wake` on control.
local class, limit, timeout, keep = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local waiting = num_waiting()
if redis.call('EXISTS', job_key(ARGV[5])) == 1 then return {1, waiting} end
local count = (#ARGV - 4) / 5
if waiting + count > limit then return {0, waiting} end

local stream, now = jobs_key(class), now_ms()
local deadline = now + timeout
ensure_group(stream)
for i = 5, #ARGV, 5 do
  local id, request, tenant, prompt_tokens, max_tokens = unpack(ARGV, i, i + 4)
  local entry = redis.call('XADD', stream, '*', 'id', id, 'tenant', tenant, 'prompt_tokens', prompt_tokens,
                           'max_tokens', max_tokens, 'deadline', deadline)
  redis.call('HSET', job_key(id), 'status', 'queued', 'class', class, 'tenant', tenant, 'entry', entry,
             'request', request, 'prompt_tokens', prompt_tokens, 'created_at', now, 'deadline_at', deadline,
             'keep_ms', keep, 'attempts', 0, 'epoch', '')
  redis.call('PEXPIREAT', job_key(id), deadline + keep)
end
redis.call('PUBLISH', base .. 'control', 'wake')
return {1, waiting + 1}
