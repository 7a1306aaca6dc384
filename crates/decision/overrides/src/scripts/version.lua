-- The version of the change that this script makes: the microseconds since 1970 by this server's clock, or more if the
-- hash or the caller has that version already. So a change is later than all that its caller knew, even if Redis lost them.
-- KEYS: the hash, the versions of its overrides. ARGV: the channel, the caller's version.
local before, time = redis.call('HGET', KEYS[1], '@') or '0', redis.call('TIME')
local after = string.format('%.0f', math.max(
  tonumber(time[1]) * 1000000 + tonumber(time[2]), tonumber(before) + 1, tonumber(ARGV[2]) + 1))
-- Versions of a hash that Redis has lost.
if before == '0' then
  redis.call('DEL', KEYS[2])
end

-- Gives the hash its version, and publishes the change. Returns the version.
local function publish(body)
  redis.call('HSET', KEYS[1], '@', after)
  -- Half of `MAX_MESSAGE`.
  body = #body > 524288 and '*' or body
  redis.call('PUBLISH', ARGV[1], 'overrides\n' .. before .. '\n' .. after .. '\n' .. body)
  return after
end

-- The version at which the list began; nil without one.
local floor = tonumber(redis.call('ZSCORE', KEYS[2], '@'))
