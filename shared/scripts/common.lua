-- Put in front of every script. KEYS[1] is the base of the queue's keys, `<prefix>:{<queue>}:`; all keys are derived
-- from it. They share its hash tag, hence its slot. Scripts are idempotent: a call whose reply was lost may be repeated.
local base = KEYS[1]
local GROUP = 'workers'
local CLASSES = {'suspect', 'resume', 'interactive', 'batch'}

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function job_key(id) return base .. 'job:' .. id end
local function events_key(id) return base .. 'events:' .. id end
local function jobs_key(class) return base .. 'jobs:' .. class end

local function is_terminal(status)
  return status == 'finished' or status == 'cancelled' or status == 'expired' or status == 'failed'
end

-- A group starts at 0: a job queued before the first worker came is served.
local function ensure_group(stream)
  if redis.call('EXISTS', stream) == 0 then
    redis.call('XGROUP', 'CREATE', stream, GROUP, '0', 'MKSTREAM')
  end
end

local function pending_of(stream)
  local summary = redis.pcall('XPENDING', stream, GROUP)
  return summary.err and 0 or summary[1]
end

-- Jobs that no worker has taken yet (XLEN - XPENDING; `lag` is unreliable after deletions).
local function num_waiting()
  local waiting = 0
  for _, class in ipairs(CLASSES) do
    local stream = jobs_key(class)
    if redis.call('EXISTS', stream) == 1 then
      waiting = waiting + redis.call('XLEN', stream) - pending_of(stream)
    end
  end
  return waiting
end

local function fields_of(flat)
  local fields = {}
  for i = 1, #flat, 2 do fields[flat[i]] = flat[i + 1] end
  return fields
end

-- The last entry of a job's log as a table of fields (seq, n, hash, ...), or the state before the first.
local function last_event(id)
  local entry = redis.call('XREVRANGE', events_key(id), '+', '-', 'COUNT', 1)[1]
  if not entry then return {seq = 0, n = '0', hash = ''} end
  local fields = fields_of(entry[2])
  fields.seq = tonumber(string.match(entry[1], '^%d+'))
  return fields
end

local function elapsed(from, to)
  if not from then return cjson.null end
  return to - tonumber(from)
end

-- Queue a job that was running again, in another class; what it has logged so far stays.
local function requeue(id, class)
  local key, stream = job_key(id), jobs_key(class)
  local job = redis.call('HMGET', key, 'tenant', 'prompt_tokens', 'deadline_at', 'request')
  local _, request = pcall(cjson.decode, job[4])
  local max_tokens = type(request) == 'table' and (request.sampling_params or {}).max_tokens or ''
  ensure_group(stream)
  local entry = redis.call('XADD', stream, '*', 'id', id, 'tenant', job[1], 'prompt_tokens', job[2],
                           'max_tokens', max_tokens, 'deadline', job[3])
  redis.call('HSET', key, 'status', 'queued', 'class', class, 'entry', entry, 'epoch', '')
  redis.call('HDEL', key, 'worker')
end

-- Take a delivered entry out of its stream.
local function remove_entry(class, entry)
  redis.call('XACK', jobs_key(class), GROUP, entry)
  redis.call('XDEL', jobs_key(class), entry)
end

-- Write a job's terminal event and its last status. `finish_reason` and `problem` ({code, message}) may be nil.
-- The event is logged before it is published: out of memory in between must not show a reader what no log holds.
local function end_job(id, status, finish_reason, problem, result)
  local key, log, now = job_key(id), events_key(id), now_ms()
  local job = redis.call('HMGET', key, 'created_at', 'started_at', 'first_token_at', 'prompt_tokens', 'epoch', 'keep_ms')
  local last = last_event(id)
  local data = cjson.encode({
    finish_reason = finish_reason or cjson.null,
    error = problem or cjson.null,
    usage = {prompt_tokens = tonumber(job[4]), completion_tokens = tonumber(last.n),
             total_tokens = tonumber(job[4]) + tonumber(last.n)},
    timing = {queued_ms = elapsed(job[1], tonumber(job[2]) or now),
              first_token_ms = job[3] and elapsed(job[1], tonumber(job[3])) or cjson.null,
              total_ms = elapsed(job[1], now)},
  })
  local seq = last.seq + 1
  redis.call('XADD', log, seq .. '-0', 'type', status, 'epoch', job[5] or '', 'tokens', '[]', 'text', '',
             'n', last.n, 'hash', last.hash, 'data', data)
  redis.call('HSET', key, 'status', status, 'finished_at', now, 'completion_tokens', last.n)
  if finish_reason then redis.call('HSET', key, 'finish_reason', finish_reason) end
  if problem then redis.call('HSET', key, 'error', cjson.encode(problem)) end
  if result then redis.call('HSET', key, 'result', result) end
  redis.call('PEXPIRE', key, job[6])
  redis.call('PEXPIRE', log, job[6])
  redis.call('PUBLISH', base .. 'tokens:' .. id,
    '{"job_id":' .. cjson.encode(id) .. ',"seq":' .. seq .. ',"epoch":' .. cjson.encode(job[5] or '') ..
    ',"type":"' .. status .. '","token_ids":[],"text":"","num_tokens":' .. last.n ..
    ',"hash":"' .. last.hash .. '","prev":"' .. last.hash .. '","data":' .. data .. '}')
end
