-- Removes expired overrides, unless they were set again.
-- KEYS: the hash. ARGV: the time in RFC 3339, then identifiers.
local removed = 0
for i = 2, #ARGV do
  local value = redis.call('HGET', KEYS[1], ARGV[i])
  if value then
    local ends = cjson.decode(value).expires_at
    -- Both are in UTC and have the same length, so the comparison of strings is that of times.
    if ends and ends <= ARGV[1] then
      removed = removed + redis.call('HDEL', KEYS[1], ARGV[i])
    end
  end
end
return removed
