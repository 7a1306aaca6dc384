-- Sets or removes overrides and publishes the change. Returns 0 if the hash was lost: the caller has a version of it.
-- KEYS: the hash, the commit of an import that is in progress. ARGV: its new version, the channel, the caller's version, the text of the change, then identifiers
-- and values; an empty value removes.
local before = redis.call('HGET', KEYS[1], '@') or ''
if before == '' and ARGV[3] ~= '' then
  return 0
end
local is_committing = redis.call('EXISTS', KEYS[2]) == 1
for i = 5, #ARGV, 2 do
  if is_committing then
    redis.call('HSET', KEYS[2], ARGV[i], ARGV[i])
  end
  if ARGV[i + 1] == '' then
    redis.call('HDEL', KEYS[1], ARGV[i])
  else
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
  end
end
redis.call('HSET', KEYS[1], '@', ARGV[1])
redis.call('PUBLISH', ARGV[2], 'overrides\n' .. before .. '\n' .. ARGV[1] .. '\n' .. ARGV[4])
return 1
