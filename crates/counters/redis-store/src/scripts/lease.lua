-- Adds hits to a counter if they are within its limit, and stores the number of this grant. KEYS: the counter, and its
-- leases. ARGV: the hits, the limit, the expiry in seconds, 1 if the key may expire earlier, the lease, the last grant
-- that it was confirmed (0 for none), and the number of this one. Returns the counter, and 1 if the hits were added, 0 if
-- they exceed the limit, or -1 if the counter has lost earlier hits of the lease.
local text = redis.call('GET', KEYS[1])
if text and not string.find(text, '^-?%d+$') then
  return { err = 'ERR value is not an integer or out of range' }
end
-- A larger count is over every limit.
local count = math.min(tonumber(text or '0'), 9007199254740992)
local known = redis.call('HGET', KEYS[2], ARGV[5])
if ARGV[6] ~= '0' then
  local grant = tonumber(known or '0')
  if not text or grant < tonumber(ARGV[6]) or grant > tonumber(ARGV[7]) then
    return { count, -1 }
  end
end
if count + tonumber(ARGV[1]) > tonumber(ARGV[2]) then
  return { count, 0 }
end
count = redis.call('INCRBY', KEYS[1], ARGV[1])
if not text or ARGV[4] == '1' and redis.call('TTL', KEYS[1]) < tonumber(ARGV[3]) then
  redis.call('EXPIRE', KEYS[1], ARGV[3])
end
-- Without the grants of replicas that were killed, there is one field per replica and limit.
if not known and redis.call('HLEN', KEYS[2]) >= 1024 then
  redis.call('EXPIRE', KEYS[2], 0)
end
redis.call('HSET', KEYS[2], ARGV[5], ARGV[7])
-- Two windows that begin at the same time share a counter.
if not known and redis.call('TTL', KEYS[2]) < tonumber(ARGV[3]) then
  redis.call('EXPIRE', KEYS[2], ARGV[3])
end
return { count, 1 }
