-- Replaces the hash by an import that the previous overrides were added to, and publishes the change. Overrides that
-- changed since the commit began keep the change. Returns 0 if the commit or the import expired, or was lost.
-- KEYS: the hash, the import, the new name of the old hash, the commit with the identifiers that changed. ARGV: the new
-- version, the channel, the identifier of the commit.
if redis.call('HGET', KEYS[4], '@') ~= ARGV[3] or redis.call('EXISTS', KEYS[2]) == 0 then
  return 0
end
for _, id in ipairs(redis.call('HVALS', KEYS[4])) do
  local value = redis.call('HGET', KEYS[1], id)
  if value then
    redis.call('HSET', KEYS[2], id, value)
  else
    redis.call('HDEL', KEYS[2], id)
  end
end
redis.call('DEL', KEYS[4])
local before = redis.call('HGET', KEYS[1], '@') or ''
redis.call('HSET', KEYS[2], '@', ARGV[1])
redis.call('PERSIST', KEYS[2])
if redis.call('EXISTS', KEYS[1]) == 1 then
  redis.call('RENAME', KEYS[1], KEYS[3])
end
redis.call('RENAME', KEYS[2], KEYS[1])
redis.call('PUBLISH', ARGV[2], 'overrides\n' .. before .. '\n' .. ARGV[1] .. '\n*')
return 1
