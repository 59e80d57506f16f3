-- Take jobs whose lease has run out from their workers, and queue them again as suspects.
-- ARGV: worker id of the reaper, lease ms, most entries to look at a class, latest time (ms, Redis clock) at which the call
--       may run, then the cursor of each class ('0-0' first)
-- Returns {ids of the reaped jobs, next cursors, time now, 1 if the call came too late and did nothing}.
-- A call that waited, in a Redis that hung, may run before the renewals that waited with it: it must do nothing.
-- An entry whose job is over or gone is removed.
local worker, lease, count, latest = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local reaped, cursors, now = {}, {}, now_ms()
if now > latest then return {reaped, {unpack(ARGV, 5)}, now, 1} end

local function reap(class, entry)
  local fields = redis.call('XRANGE', jobs_key(class), entry, entry)[1]
  local id = fields and fields_of(fields[2]).id
  local job = id and redis.call('HMGET', job_key(id), 'status', 'entry', 'worker', 'class') or {}
  remove_entry(class, entry)
  if job[1] == 'running' and job[2] == entry and job[4] == class then
    redis.call('HSET', job_key(id), 'lost_by', job[3])
    requeue(id, 'suspect')
    reaped[#reaped + 1] = id
  end
end

for i, class in ipairs(CLASSES) do
  local stream = jobs_key(class)
  cursors[i] = '0-0'
  if redis.call('EXISTS', stream) == 1 then
    local reply = redis.pcall('XAUTOCLAIM', stream, GROUP, worker, lease, ARGV[4 + i], 'COUNT', count, 'JUSTID')
    if not reply.err then
      cursors[i] = reply[1]
      for _, entry in ipairs(reply[2]) do reap(class, entry) end
    end
  end
end
if #reaped > 0 then redis.call('PUBLISH', base .. 'control', 'wake') end
return {reaped, cursors, now, 0}
