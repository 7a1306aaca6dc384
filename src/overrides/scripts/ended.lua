-- Removes overrides that have ended, but not those that were set again meanwhile.
-- KEYS: the hash. ARGV: the time, as RFC 3339 has it, then identifiers.
local removed = 0
for i = 2, #ARGV do
  local value = redis.call('HGET', KEYS[1], ARGV[i])
  if value then
    local ends = cjson.decode(value).expires_at
    -- Both are in UTC and equally long, so that they compare as texts.
    if ends and ends <= ARGV[1] then
      removed = removed + redis.call('HDEL', KEYS[1], ARGV[i])
    end
  end
end
return removed
