-- End a job that this worker runs: terminal event, result, entry removed.
-- ARGV: id, epoch, seq, status, finish reason ('' if none), error JSON ('' if none), result text
-- Returns ok 1, already ended (by this call, or by its deadline) 2, gone 0, fenced -1, differs -2.
local id, epoch, seq, status = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local key = job_key(id)
local job = redis.call('HMGET', key, 'epoch', 'status', 'class', 'entry')
if not job[2] then return 0 end
if job[1] ~= epoch then return -1 end
if is_terminal(job[2]) then return 2 end
if redis.call('XLEN', events_key(id)) ~= seq - 1 then return -2 end
local finish_reason = ARGV[5] ~= '' and ARGV[5] or nil
local problem = ARGV[6] ~= '' and cjson.decode(ARGV[6]) or nil
end_job(id, status, finish_reason, problem, ARGV[7])
remove_entry(job[3], job[4])
return 1
