-- Sets or removes overrides, logs and publishes the change. Returns 0 if the hash was lost (the caller has a version of it),
-- or must have the caller's version and has another one.
-- KEYS: the hash, the commit of an import that is in progress, the log. ARGV: its new version, the channel, the caller's
-- version, 1 if the hash must have it, the text of the change, then identifiers and values; an empty value removes.
local before = redis.call('HGET', KEYS[1], '@') or ''
if before ~= ARGV[3] and (before == '' or ARGV[4] == '1') then
  return 0
end
local is_committing = redis.call('EXISTS', KEYS[2]) == 1
for i = 6, #ARGV, 2 do
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
record(KEYS[3], before, ARGV[5])
return 1
