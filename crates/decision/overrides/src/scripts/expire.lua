-- Removes overrides that have expired by this server's clock, unless they were set again.
-- KEYS: the hash. ARGV: identifiers, each with its end in RFC 3339 and in seconds since 1970.
local now, removed = tonumber(redis.call('TIME')[1]), 0
for i = 1, #ARGV, 3 do
  local value = tonumber(ARGV[i + 2]) <= now and redis.call('HGET', KEYS[1], ARGV[i])
  if value and cjson.decode(value).expires_at == ARGV[i + 1] then
    removed = removed + redis.call('HDEL', KEYS[1], ARGV[i])
  end
end
return removed
