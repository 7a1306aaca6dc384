-- The number of a version `number:token`; 0 for none, and for one of a build that did not number them.
local function number(version)
  return tonumber(string.match(version, '^(%d+):')) or 0
end

-- Gives the hash its next version, logs the change and publishes it. Returns the version. `before` is the version before
-- the change. ARGV begins with the token of the version after it, the channel and the caller's version, which Redis may
-- have lost.
local function record(hash, log, before, body)
  local after = string.format('%.0f:%s', math.max(number(before), number(ARGV[3])) + 1, ARGV[1])
  local versions = before .. '\n' .. after .. '\n'
  redis.call('HSET', hash, '@', after)
  -- Half of `MAX_MESSAGE`.
  redis.call('PUBLISH', ARGV[2], 'overrides\n' .. versions .. (#body > 524288 and '*' or body))
  -- `history::MAX_CHANGE` and `MAX_CHANGES`.
  redis.call('LPUSH', log, versions .. (#body > 16384 and '*' or body))
  redis.call('LTRIM', log, 0, 127)
  return after
end
