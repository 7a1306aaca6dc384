-- Gives a key so many seconds to live, unless it lives longer: of two windows that begin at the same moment and count
-- under one key the longer one keeps its count.
if redis.call('TTL', KEYS[1]) < tonumber(ARGV[1]) then
  return redis.call('EXPIRE', KEYS[1], ARGV[1])
end
return 1
