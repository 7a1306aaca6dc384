-- Subtracts unspent hits of a lease, if the counter has them: it knows the last grant that the lease was confirmed, or one
-- that was requested since and whose command came first on another connection. Otherwise the counter was lost and created
-- again, or restored from a time before. No lease has a million grants, and another lease's numbers begin at random, so
-- they are further away. KEYS: the counter, and its leases. ARGV: the hits, how many of the counter's hits are the
-- caller's, the lease, and the last confirmed grant. Returns the counter if it has changed, and 0 as for a refused lease.
local count = tonumber(redis.call('GET', KEYS[1]) or '')
local known = tonumber(redis.call('HGET', KEYS[2], ARGV[3]) or '')
if not count or count < tonumber(ARGV[2]) or not known then
  return { 0, 0 }
end
local since = known - tonumber(ARGV[4])
if since < 0 or since > 1000000 then
  return { 0, 0 }
end
-- A refund may have taken from the unspent hits.
return { redis.call('DECRBY', KEYS[1], string.format('%d', math.min(count, tonumber(ARGV[1])))), 0 }
