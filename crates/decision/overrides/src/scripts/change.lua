-- Sets or removes overrides, and publishes that. Returns the version, nil if Redis has later versions of all of them, or 0 if
-- it is too late.
-- KEYS: the hash, the versions of its overrides. ARGV: the channel, the caller's version, the text of the change, the
-- microsecond after which it is refused or empty; then an identifier, its version (empty for that of this change) and its
-- value, which is empty for a removal, and so on.
-- A server that was stopped reads it when it goes on. Its caller has waited no longer, and may have made a later change.
if ARGV[4] ~= '' and tonumber(time[1]) * 1000000 + tonumber(time[2]) > tonumber(ARGV[4]) then
  return '0'
end
if not floor then
  floor = tonumber(before)
  redis.call('ZADD', KEYS[2], before, '@')
end
local has_changed = false
for i = 5, #ARGV, 3 do
  local id, version, value = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  if version == '' then
    version = after
  end
  if tonumber(version) > tonumber(redis.call('ZSCORE', KEYS[2], id) or floor) then
    has_changed = true
    redis.call('ZADD', KEYS[2], version, id)
    if value == '' then
      redis.call('HDEL', KEYS[1], id)
    else
      redis.call('HSET', KEYS[1], id, value)
    end
  end
end
if not has_changed then
  return nil
end
-- `versions::MAX_LISTED`, and the floor. What is written back is not the latest of all.
if ARGV[6] == '' and redis.call('ZCARD', KEYS[2]) > 4001 then
  redis.call('DEL', KEYS[2])
  redis.call('ZADD', KEYS[2], after, '@')
end
return publish(ARGV[3])
