-- Subtracts unspent hits of a lease, if the counter has them: it knows the last grant that the lease was confirmed.
-- Otherwise it was lost and created again, or restored from a time before. KEYS: the counter, and its leases. ARGV: the
-- hits, how many of the counter's hits are the caller's, the lease, the last confirmed grant and the last requested one.
local count = tonumber(redis.call('GET', KEYS[1]) or '')
local known = tonumber(redis.call('HGET', KEYS[2], ARGV[3]) or '')
if not count or count < tonumber(ARGV[2]) or not known or known < tonumber(ARGV[4]) or known > tonumber(ARGV[5]) then
  return 0
end
return redis.call('DECRBY', KEYS[1], ARGV[1])
