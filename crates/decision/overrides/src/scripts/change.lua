-- Sets or removes overrides, logs and publishes the change, and returns the versions before and after it; nil if the hash has another version
-- than the caller requires.
-- KEYS: the hash, the commit of an import that is in progress, the log. ARGV: the token of the new version, the channel,
-- the caller's version, the version that the hash must have (`any`, or `kept` for one if the caller has one), the text of
-- the change, then identifiers and values; an empty value removes.
local before, required = redis.call('HGET', KEYS[1], '@') or '', ARGV[4]
if required == 'kept' then
  required = (before == '' and ARGV[3] ~= '') and 'lost' or 'any'
end
if required ~= 'any' and required ~= before then
  return nil
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
return {before, record(KEYS[1], KEYS[3], before, ARGV[5])}
