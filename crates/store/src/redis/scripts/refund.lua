-- Subtracts hits from a counter, but never below 0, and creates none.
if redis.call('EXISTS', KEYS[1]) == 0 then
  return 0
end
local count = redis.call('DECRBY', KEYS[1], ARGV[1])
if count < 0 then
  count = redis.call('INCRBY', KEYS[1], string.format('%.0f', -count))
end
return count
