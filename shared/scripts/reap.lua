-- Take jobs whose lease has run out from their workers, and queue them again as suspects.
-- ARGV: worker id of the reaper, lease ms, most entries to look at a class, then the cursor of each class ('0-0' first)
-- Returns {ids of the reaped jobs, next cursors}. An entry whose job is over or gone is removed.
local worker, lease, count = ARGV[1], ARGV[2], ARGV[3]
local reaped, cursors = {}, {}

local function reap(class, entry)
  local fields = redis.call('XRANGE', jobs_key(class), entry, entry)[1]
  local id = fields and fields_of(fields[2]).id
  local job = id and redis.call('HMGET', job_key(id), 'status', 'entry', 'worker') or {}
  remove_entry(class, entry)
  if job[1] == 'running' and job[2] == entry then
    redis.call('HSET', job_key(id), 'lost_by', job[3])
    requeue(id, 'suspect')
    reaped[#reaped + 1] = id
  end
end

for i, class in ipairs(CLASSES) do
  local stream = jobs_key(class)
  cursors[i] = '0-0'
  if redis.call('EXISTS', stream) == 1 then
    local reply = redis.pcall('XAUTOCLAIM', stream, GROUP, worker, lease, ARGV[3 + i], 'COUNT', count, 'JUSTID')
    if not reply.err then
      cursors[i] = reply[1]
      for _, entry in ipairs(reply[2]) do reap(class, entry) end
    end
  end
end
if #reaped > 0 then redis.call('PUBLISH', base .. 'control', 'wake') end
return {reaped, cursors}
