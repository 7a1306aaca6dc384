-- Sets the expiry of a key in seconds, unless it expires later: two windows that begin at the same time share a key, which
-- must not expire before the longer one ends.
if redis.call('TTL', KEYS[1]) < tonumber(ARGV[1]) then
  return redis.call('EXPIRE', KEYS[1], ARGV[1])
end
return 1
