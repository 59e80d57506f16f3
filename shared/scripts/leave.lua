-- Take a worker that has gone out of the groups. One that still holds entries stays: its leases will run out.
-- ARGV: worker id
local worker = ARGV[1]
for _, class in ipairs(CLASSES) do
  local stream = jobs_key(class)
  local held = redis.pcall('XPENDING', stream, GROUP, '-', '+', 1, worker)
  if not held.err and #held == 0 then redis.call('XGROUP', 'DELCONSUMER', stream, GROUP, worker) end
end
return 1
