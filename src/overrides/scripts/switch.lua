-- Replaces the hash by an import and publishes the change. Returns 0 if the hash has another version.
-- KEYS: the hash, the import, the new name of the old hash. ARGV: the new version, the channel, the expected version.
if (redis.call('HGET', KEYS[1], '@') or '') ~= ARGV[3] then
  return 0
end
redis.call('HSET', KEYS[2], '@', ARGV[1])
redis.call('PERSIST', KEYS[2])
if redis.call('EXISTS', KEYS[1]) == 1 then
  redis.call('RENAME', KEYS[1], KEYS[3])
end
redis.call('RENAME', KEYS[2], KEYS[1])
redis.call('PUBLISH', ARGV[2], 'overrides\n' .. ARGV[3] .. '\n' .. ARGV[1] .. '\n*')
return 1
