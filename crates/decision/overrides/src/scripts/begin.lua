-- Begins the commit of an import. Returns 0 if another one is in progress.
-- KEYS: the commit in progress. ARGV: its identifier, and the seconds after which it expires.
if redis.call('EXISTS', KEYS[1]) == 1 then
  return 0
end
redis.call('HSET', KEYS[1], '@', ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1
