-- Replaces the hash by an import that the previous overrides were added to, logs and publishes the change. Overrides that
-- changed since the commit began keep the change. Returns the new version, or nil if the commit or a part of the import
-- expired, or was lost.
-- KEYS: the hash, the import, the new name of the old hash, the commit with the identifiers that changed, the log. ARGV:
-- the token of the new version, the channel, the caller's version, the identifier of the commit, the number of overrides,
-- the text of the change.
if redis.call('HGET', KEYS[4], '@') ~= ARGV[4] or redis.call('HLEN', KEYS[2]) ~= tonumber(ARGV[5]) then
  return nil
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
redis.call('PERSIST', KEYS[2])
if redis.call('EXISTS', KEYS[1]) == 1 then
  redis.call('RENAME', KEYS[1], KEYS[3])
end
redis.call('RENAME', KEYS[2], KEYS[1])
return record(KEYS[1], KEYS[5], before, ARGV[6])
