-- Hand up to n jobs to a worker: the only place that decides the order.
-- ARGV: worker id, n, nonce, most starts without progress, recover (1: also hand over jobs delivered to this worker that
--       it does not know of, because the reply of an earlier take was lost), then the ids of the jobs the worker knows
-- Returns a list of {id, epoch, request JSON, ms until the deadline, [log entries], suspect (1) or not (0)}.
-- A suspect (its last worker died) is handed out alone: the worker takes nothing else until it has proved harmless. One
-- that was started too often without making a token is given up: failed, and noted in `dead`.
-- Jobs that were cancelled or have expired get their terminal event here (if they have none yet) and are not returned.
-- An entry whose job is gone or was queued again elsewhere is removed.
local worker, count, nonce, max_starts, recover = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4]), ARGV[5] == '1'
local known = {}
for i = 6, #ARGV do known[ARGV[i]] = true end
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

local function give_up(id, request, lost_by, starts)
  local message = 'given up: ' .. starts .. ' times a worker died or hung on this job before it made a token'
  end_job(id, 'failed', nil, {code = 'poison', message = message})
  redis.call('XADD', base .. 'dead', 'MAXLEN', '~', 1000, '*', 'id', id, 'reason', message, 'starts', starts,
             'last_worker', lost_by or '', 'request', request)
end

local function start(class, entry, id)
  local key = job_key(id)
  local job = redis.call('HMGET', key, 'status', 'entry', 'request', 'deadline_at', 'cancel',
                         'idle_starts', 'length_at_start', 'lost_by', 'class')
  local live = job[1] == 'queued' or job[1] == 'running'
  -- The class too: entries of two streams that were written in one millisecond have the same id.
  if not live or job[2] ~= entry or job[9] ~= class then return remove_entry(class, entry) end
  if job[5] == '1' then
    end_job(id, 'cancelled', nil, {code = 'cancelled', message = 'the job was cancelled'})
    return remove_entry(class, entry)
  end
  if tonumber(job[4]) <= now then
    end_job(id, 'expired', nil, {code = 'expired', message = 'the deadline passed while the job was queued'})
    return remove_entry(class, entry)
  end
  local length = redis.call('XLEN', events_key(id))
  local starts = tonumber(job[6] or '0')
  if length > tonumber(job[7] or '0') then starts = 0 end  -- the last attempt made progress
  if starts >= max_starts then
    give_up(id, job[3], job[8], starts)
    return remove_entry(class, entry)
  end
  redis.call('HSET', key, 'idle_starts', starts + 1, 'length_at_start', length)
  local epoch = redis.call('HINCRBY', key, 'attempts', 1) .. ':' .. nonce
  redis.call('HSET', key, 'status', 'running', 'worker', worker, 'epoch', epoch)
  redis.call('HSETNX', key, 'started_at', now)
  local log = redis.call('XRANGE', events_key(id), '-', '+')
  taken[#taken + 1] = {id, epoch, job[3], tonumber(job[4]) - now, log, class == 'suspect' and 1 or 0}
end

for _, class in ipairs(CLASSES) do
  local stream = jobs_key(class)
  if recover and redis.call('EXISTS', stream) == 1 then
    for _, entry in ipairs(read(stream, '0', 5000)) do
      local id = entry[2] and fields_of(entry[2]).id
      if not id then
        remove_entry(class, entry[1])
      elseif not known[id] and #taken < count then
        start(class, entry[1], id)
      end
    end
  end
  while #taken < count and redis.call('EXISTS', stream) == 1 do
    local entries = read(stream, '>', class == 'suspect' and 1 or count - #taken)
    if #entries == 0 then break end
    for _, entry in ipairs(entries) do start(class, entry[1], fields_of(entry[2]).id) end
    if class == 'suspect' and #taken > 0 then return taken end
  end
end
return taken
