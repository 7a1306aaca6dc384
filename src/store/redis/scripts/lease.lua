-- Adds hits to a counter if they are within its limit. ARGV has the hits, the limit, the expiry in seconds, and 1 if the
-- key may expire earlier. Returns the counter, and 1 if the hits were added, else 0.
local text = redis.call('GET', KEYS[1])
if text and not string.find(text, '^-?%d+$') then
  return { err = 'ERR value is not an integer or out of range' }
end
-- A larger count is over every limit.
local count = math.min(tonumber(text or '0'), 9007199254740992)
if count + tonumber(ARGV[1]) > tonumber(ARGV[2]) then
  return { count, 0 }
end
count = redis.call('INCRBY', KEYS[1], ARGV[1])
if not text or ARGV[4] == '1' and redis.call('TTL', KEYS[1]) < tonumber(ARGV[3]) then
  redis.call('EXPIRE', KEYS[1], ARGV[3])
end
return { count, 1 }
