-- Takes unspent hits off a counter. ARGV holds the hits, and how many of the counter's hits are the caller's: a counter
-- that has fewer was lost and began again, and the hits are not in it.
local count = tonumber(redis.call('GET', KEYS[1]) or '')
if not count or count < tonumber(ARGV[2]) then
  return 0
end
return redis.call('DECRBY', KEYS[1], ARGV[1])
