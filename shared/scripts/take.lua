-- Hand up to n jobs to a worker: the only place that decides the order.
-- ARGV: worker id, n, nonce, recover (1: also hand over jobs delivered to this worker that it does not know of, because
--       the reply of an earlier take was lost), then the ids of the jobs the worker knows
-- Returns a list of {id, epoch, request JSON, ms until the deadline, [log entries]}.
-- Jobs that were cancelled or have expired get their terminal event here (if they have none yet) and are not returned.
-- An entry whose job is gone or was queued again elsewhere is removed.
local worker, count, nonce, recover = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4] == '1'
local known = {}
for i = 5, #ARGV do known[ARGV[i]] = true end
local taken, now = {}, now_ms()

local function read(stream, from, limit)
  local reply = redis.pcall('XREADGROUP', 'GROUP', GROUP, worker, 'COUNT', limit, 'STREAMS', stream, from)
  if reply and reply.err then
    if not string.find(reply.err, 'NOGROUP') then return {}, reply end
    redis.call('XGROUP', 'CREATE', stream, GROUP, '0', 'MKSTREAM')
    reply = redis.call('XREADGROUP', 'GROUP', GROUP, worker, 'COUNT', limit, 'STREAMS', stream, from)
  end
  return reply and reply[1] and reply[1][2] or {}
end

local function start(class, entry, id)
  local key = job_key(id)
  local job = redis.call('HMGET', key, 'status', 'entry', 'request', 'deadline_at', 'cancel')
  local live = job[1] == 'queued' or job[1] == 'running'
  if not live or job[2] ~= entry then return remove_entry(class, entry) end
  if job[5] == '1' then
    end_job(id, 'cancelled', nil, {code = 'cancelled', message = 'the job was cancelled'})
    return remove_entry(class, entry)
  end
  if tonumber(job[4]) <= now then
    end_job(id, 'expired', nil, {code = 'expired', message = 'the deadline passed while the job was queued'})
    return remove_entry(class, entry)
  end
  local epoch = redis.call('HINCRBY', key, 'attempts', 1) .. ':' .. nonce
  redis.call('HSET', key, 'status', 'running', 'worker', worker, 'epoch', epoch)
  redis.call('HSETNX', key, 'started_at', now)
  local log = redis.call('XRANGE', events_key(id), '-', '+')
  taken[#taken + 1] = {id, epoch, job[3], tonumber(job[4]) - now, log}
end

for _, class in ipairs(CLASSES) do
  local stream = jobs_key(class)
  if recover and redis.call('EXISTS', stream) == 1 then
    for _, entry in ipairs(read(stream, '0', 1000)) do
      local id = entry[2] and fields_of(entry[2]).id
      if not id then
        remove_entry(class, entry[1])
      elseif not known[id] and #taken < count then
        start(class, entry[1], id)
      end
    end
  end
  while #taken < count and redis.call('EXISTS', stream) == 1 do
    local entries = read(stream, '>', count - #taken)
    if #entries == 0 then break end
    for _, entry in ipairs(entries) do start(class, entry[1], fields_of(entry[2]).id) end
  end
end
return taken
