-- Bring back a job that Redis has lost, or whose log does not hold what one of its readers has (Redis has lost the tail
-- of the log, and perhaps another attempt has gone on differently since): what a client has seen wins.
-- ARGV: id, request JSON, tenant, prompt tokens, then in ms: age (since the job was accepted), timeout, keep, age at the
--       first token ('' if the reader has none), then five for each event 1..n that the reader has: epoch, token ids
--       (JSON), text, tokens so far, running hash
-- Returns done 1, not needed 0 (the log continues what the reader has: nothing was changed), refused -1 (a reader that
-- has seen something else was here first).
-- Writes events:<id>: the reader's events under their old numbers, word for word, so that readers of the same job that
-- are behind simply go on, and a number never stands for two events. Writes job:<id> (what is still there of it stays),
-- with status queued, and without epoch: attempts that are under way are fenced. `restored_seq` and `restored_hash` are
-- n and its hash: up to there the log is not replaced any more by something else. Writes jobs:resume (XADD); removes
-- the entry of a job that ran (that of a queued one is skipped when it is taken). Publishes `wake` on control.
-- A job that was cancelled or has expired is not queued: it ends anew, behind the reader's events.
local FIRST, WIDTH = 9, 5
local id = ARGV[1]
local key, log = job_key(id), events_key(id)
local seq = (#ARGV - FIRST + 1) / WIDTH
local job = fields_of(redis.call('HGETALL', key))

local function given(number, offset) return ARGV[FIRST + (number - 1) * WIDTH + offset] end

local function hash_given(number) return number > 0 and given(number, 4) or '' end

local function logged(number)
  local entry = redis.call('XRANGE', log, number .. '-0', number .. '-0')[1]
  return entry and fields_of(entry[2])
end

-- Whether the log holds the reader's last event, that is, all of its events: the hash is that of all tokens.
local function holds_position()
  if seq == 0 then return true end
  local entry = logged(seq)
  return entry and entry.hash == hash_given(seq) and entry.n == given(seq, 3)
end

local function is_refused()
  local restored = tonumber(job.restored_seq or '0')
  if restored == 0 then return false end
  if seq >= restored then return hash_given(restored) ~= job.restored_hash end
  return logged(seq) ~= nil
end

local function write_log()
  redis.call('DEL', log)
  for number = 1, seq do
    redis.call('XADD', log, number .. '-0', 'type', 'token', 'epoch', given(number, 0), 'tokens', given(number, 1),
               'text', given(number, 2), 'n', given(number, 3), 'hash', given(number, 4))
  end
end

local function write_job()
  local created = tonumber(job.created_at) or now_ms() - ARGV[5]
  local deadline = tonumber(job.deadline_at) or math.max(created + ARGV[6], now_ms())
  local keep = job.keep_ms or ARGV[7]
  redis.call('HSET', key, 'status', 'queued', 'tenant', ARGV[3], 'request', ARGV[2], 'prompt_tokens', ARGV[4],
             'created_at', created, 'deadline_at', deadline, 'keep_ms', keep, 'attempts', job.attempts or 0,
             'epoch', '', 'restored_seq', seq, 'restored_hash', hash_given(seq))
  redis.call('HDEL', key, 'finished_at', 'completion_tokens', 'finish_reason', 'result', 'error')
  if ARGV[8] ~= '' then
    redis.call('HSETNX', key, 'started_at', created + ARGV[8])
    redis.call('HSETNX', key, 'first_token_at', created + ARGV[8])
  end
  return deadline + keep
end

local function end_again()
  local known, problem = pcall(cjson.decode, job.error)
  end_job(id, job.status, nil, known and problem or {code = job.status, message = 'the job was ' .. job.status})
end

local is_held = holds_position()
local is_over = is_terminal(last_event(id).type)
if is_held and (is_over or job.status and not is_terminal(job.status)) then return 0 end
if not is_held and is_refused() then return -1 end

local expires = write_job()  -- first: if memory is short, this is refused, and nothing has happened
if not is_held then write_log() end
local length = redis.call('XLEN', log)
if length > tonumber(job.length_at_start or '0') then  -- the attempt that Redis has forgotten had made progress
  redis.call('HSET', key, 'idle_starts', 0)
end
redis.call('HSET', key, 'length_at_start', length)
redis.call('PEXPIREAT', key, expires)
redis.call('PEXPIREAT', log, expires)
if job.status == 'running' then remove_entry(job.class, job.entry) end
if job.status == 'cancelled' or job.status == 'expired' then
  end_again()
else
  requeue(id, 'resume')
  redis.call('PUBLISH', base .. 'control', 'wake')
end
return 1
