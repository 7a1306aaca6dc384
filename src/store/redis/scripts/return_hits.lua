-- Subtracts unspent hits of a lease. ARGV has the hits, and how many of the counter's hits are the caller's: a counter
-- with fewer was lost and created again, without these hits.
local count = tonumber(redis.call('GET', KEYS[1]) or '')
if not count or count < tonumber(ARGV[2]) then
  return 0
end
return redis.call('DECRBY', KEYS[1], ARGV[1])
