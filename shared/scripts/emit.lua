-- Log and publish one event of a running job.
-- ARGV: id, epoch, seq, number of tokens so far, running hash, token ids (JSON), text, message to publish
-- Returns {code, readers}: ok 1, already there 2, gone 0, fenced -1, differs -2 (the log holds something else),
-- cancelled -3 (nothing was logged); readers = how many connections got the message.
local id, epoch, seq = ARGV[1], ARGV[2], tonumber(ARGV[3])
local key, log = job_key(id), events_key(id)
local job = redis.call('HMGET', key, 'epoch', 'cancel', 'status')
if not job[3] then return {0, 0} end
if job[1] ~= epoch or job[3] ~= 'running' then return {-1, 0} end
local length = redis.call('XLEN', log)
if length >= seq then
  local entry = redis.call('XRANGE', log, seq .. '-0', seq .. '-0')[1]
  local fields = entry and fields_of(entry[2]) or {}
  return {fields.epoch == epoch and fields.hash == ARGV[5] and fields.n == ARGV[4] and 2 or -2, 0}
end
if length ~= seq - 1 then return {-2, 0} end
if job[2] == '1' then return {-3, 0} end
redis.call('XADD', log, seq .. '-0', 'type', 'token', 'epoch', epoch, 'tokens', ARGV[6], 'text', ARGV[7],
           'n', ARGV[4], 'hash', ARGV[5])
if seq == 1 then
  redis.call('HSET', key, 'first_token_at', now_ms())
  redis.call('PEXPIREAT', log, redis.call('PEXPIRETIME', key))
end
return {1, redis.call('PUBLISH', base .. 'tokens:' .. id, ARGV[8])}
